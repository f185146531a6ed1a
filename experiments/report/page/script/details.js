// What a run opens: how to repeat it, what it ran on, its configuration.

// A table of two or three columns, of text alone.
function textTable(headers, rows) {
    const table = element("table");
    const head = element("tr");
    head.append(...headers.map((header) => element("th", header, { scope: "col" })));
    table.append(element("thead"), element("tbody"));
    table.tHead.append(head);
    for (const cells of rows) {
        const row = element("tr");
        const [first, ...others] = cells;
        row.append(element("th", first, { scope: "row" }), ...others.map((cell) => element("td", cell ?? "-")));
        table.tBodies[0].append(row);
    }
    return table;
}

const OF_NO_DIFFERENCE = ["seed", "names."];

// What two runs' configurations differ in.
function differenceTable(model, run, other, headers) {
    const rows = Object.entries(model.table.configuration)
        .filter(([path]) => !OF_NO_DIFFERENCE.some((start) => path.startsWith(start)))
        .map(([path, column]) => [path, valueOf(column, run), valueOf(column, other)])
        .filter(([, mine, its]) => mine !== its);
    return rows.length ? textTable(["option", ...headers], rows) : element("p", "Nothing, but for the seed.");
}

function block(title, ...nodes) {
    const section = element("section");
    section.append(element("h3", title), ...nodes);
    return section;
}

const OVERRIDING = ["up", "down", "workers", "nodes", "schedule", "trace", "faults"];
const MAX_LETTERS = 120;
const shortened = (text) => (text.length > MAX_LETTERS ? `${text.slice(0, MAX_LETTERS)}…` : text);

class Details {
    constructor(model) {
        this.model = model;
        this.dialog = document.getElementById("run");
    }

    open(run) {
        const { table } = this.model;
        const label = this.model.settings[this.model.setting[run]].label;
        document.getElementById("run-heading").textContent = `${label}, seed ${this.model.get("seed", run) ?? "-"}`;
        const status = this.model.get("status", run);
        const reason = this.model.get("reason", run);
        const command = valueOf(table.commands, run);
        const environment = element("details");
        environment.append(element("summary", "What it ran on"), textTable(["what", "value"], entriesOf(table.environment, run)));
        const configuration = element("details");
        configuration.append(element("summary", "The whole configuration"), textTable(["option", "value"], entriesOf(table.configuration, run)));
        const summary = element("details");
        summary.append(element("summary", "All it came to"), textTable(["field", "value"], entriesOf(table.summary, run)));
        document.getElementById("run-body").replaceChildren(
            element("p", `${status}${reason ? `: ${reason}` : ""}`, { class: "finding" }),
            block("To repeat it", element("pre", command ?? "No command was recorded.")),
            block("Made from", textTable(["what", "value"], this.origin(run))),
            block("Network", ...this.network(run)),
            block("Its configuration, beside the best baseline's", this.beside(run)),
            configuration, environment, summary,
        );
        tell(() => ""); // or it is said once more where the page is there again
        this.dialog.showModal();
    }

    origin(run) {
        const { environment } = this.model.table;
        const get = (name) => (name in environment ? valueOf(environment[name], run) : null);
        const commit = get("git_commit");
        return [
            ["folder", this.model.get("place", run)],
            ["commit", commit && commit + (get("git_dirty") === "true" ? ", with changes that were not committed" : "")],
            ["host", get("host")], ["processor", get("cpu")], ["started", get("started")],
        ];
    }

    network(run) {
        const trace = this.option("net.trace", run) && "as in the trace";
        const rows = [
            ["Mbit/s", trace ?? this.model.get("asked_rate_mbit", run) ?? "no limit", this.measured("achieved_rate_mbit", run)],
            ["delay one way (ms)", trace ?? this.option("net.delay_ms", run), "-"],
            ["round trip (ms)", "-", this.measured("achieved_rtt_ms", run)],
            ["loss (%)", this.option("net.loss_pct", run), "-"],
        ];
        const links = JSON.parse(valueOf(this.model.table.links, run) ?? "[]");
        const nodes = [textTable(["", "asked", "measured"], rows)];
        const overrides = this.overrides(run);
        if (overrides.length) nodes.push(textTable(["but some links, or moments, have their own", "asked"], overrides));
        if (links.length) nodes.push(this.links(links));
        return nodes;
    }

    measured(name, run) {
        const value = this.model.get(name, run);
        return value === null ? "not measured" : significant(value);
    }

    option(path, run) {
        const column = this.model.table.configuration[path];
        return column ? valueOf(column, run) : null;
    }

    // What the configuration gives to some links, or at some times, in place of what all have.
    overrides(run) {
        return entriesOf(this.model.table.configuration, run)
            .filter(([path]) => OVERRIDING.includes(path.split(".")[1]) && path.startsWith("net."))
            .map(([path, value]) => [path.slice("net.".length), shortened(String(value))]);
    }

    links(links) {
        const box = element("details");
        const rows = links.map((link) => [
            `${link.sender} to ${link.receiver}`,
            `${link.asked_rate_mbit ?? "no limit"}`, `${link.achieved_rate_mbit ?? "-"}`,
            `${link.asked_rtt_ms ?? "-"}`, `${link.achieved_rtt_ms ?? "-"}`,
        ]);
        box.append(element("summary", `Each of ${links.length} links`), textTable(["link", "Mbit/s asked", "measured", "round trip asked (ms)", "measured"], rows));
        return box;
    }

    // Beside the baseline's run of the same seed, where there is one.
    beside(run) {
        const { model } = this;
        const setting = model.setting[run];
        const situation = model.situations.find((one) => one.settings.includes(setting));
        if (situation === undefined || situation.baseline < 0) return element("p", "Its situation has no baseline.");
        if (situation.baseline === setting) return element("p", "It is a run of the best baseline.");
        const seed = model.get("seed", run);
        const runs = model.runsOf[situation.baseline];
        const other = runs.find((one) => model.get("seed", one) === seed) ?? runs[0];
        return differenceTable(model, run, other, ["this run", model.settings[situation.baseline].label]);
    }
}
