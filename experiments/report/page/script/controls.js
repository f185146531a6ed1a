// The controls of the page, and the table of runs with its filters.

const FILTERS = ["net", "workers", "task", "model", "status", "backend", "optim"];

function setUpAlgorithms(model) {
    const box = document.querySelector("#algorithms .choices");
    for (const { name, color } of model.algorithms) {
        const label = element("label");
        const input = element("input", undefined, { type: "checkbox", value: name });
        const swatch = element("span", "", { class: "swatch", "aria-hidden": "true" });
        const paint = () => (swatch.style.background = inTheme(color));
        darkness.addEventListener("change", paint);
        paint();
        label.append(input, swatch, name);
        box.append(label);
        input.addEventListener("change", () => {
            const others = state.hidden.filter((other) => other !== name);
            choose({ hidden: input.checked ? others : [...others, name] });
        });
    }
    const all = model.algorithms.map(({ name }) => name);
    document.getElementById("all-algorithms").addEventListener("click", () => choose({ hidden: [] }));
    document.getElementById("no-algorithms").addEventListener("click", () => choose({ hidden: all }));
    const check = () => {
        for (const input of box.querySelectorAll("input")) input.checked = !isHidden(input.value);
    };
    onChange((what) => {
        if (!what.includes("hidden")) return;
        check();
        tell(() => `${all.filter((name) => !isHidden(name)).length} of ${all.length} algorithms are shown.`);
    });
    check();
}

function setUpAxes(model) {
    const situation = document.getElementById("situation");
    situation.append(...model.situations.map(({ label }, place) => element("option", label, { value: place })));
    const bound = { situation: "situation", over: "over", "log-x": "logX", "log-y": "logY" };
    for (const [id, choice] of Object.entries(bound)) {
        const node = document.getElementById(id);
        const what = node.type === "checkbox" ? "checked" : "value";
        node[what] = state[choice];
        node.addEventListener("change", () => choose({ [choice]: node[what] }));
    }
}

function setUpRuns(DataTable, model) {
    const details = new Details(model);
    const shown = model.table.columns;
    const open = {
        title: "run", className: "no-export", isWord: true,
        render: (run, purpose) =>
            purpose === "display" ? `<button type="button" data-run="${Number(run)}" aria-label="Open run ${Number(run) + 1}">Open</button>` : run,
    };
    const columns = [open, ...shown.map((column) => ({
        title: column.header, isWord: column.is_word, className: column.name === "reason" ? "reason" : undefined,
        endless: column.name === "time_to_accuracy_s" ? "missed" : undefined,
    }))];
    const time = shown.findIndex(({ name }) => name === "time_to_accuracy_s");
    const rows = Array.from({ length: model.count }, (_, run) => {
        const cells = shown.map((column) => valueOf(column, run));
        const isTimed = model.settings[model.setting[run]].is_timed && !model.isAtWork(run);
        const isMiss = cells[time] === null && model.get("target", run) !== null;
        if (time >= 0 && isTimed && isMiss) cells[time] = Infinity;
        return [run, ...cells];
    });
    const table = makeTable(DataTable, document.getElementById("run-table"), columns, rows);
    document.getElementById("run-table").addEventListener("click", (event) => {
        const button = event.target.closest("button[data-run]");
        if (button) details.open(Number(button.dataset.run));
    });
    setUpFilters(model, table);
    hideRows(table, (run) => isHidden(model.get("name", run)));
}

function setUpFilters(model, table) {
    const box = document.getElementById("run-filters");
    for (const column of model.table.columns) {
        if (!FILTERS.includes(column.name) || column.levels.length < 2) continue;
        const label = element("label", `${column.header} `);
        const select = element("select", undefined, { "data-filter": column.name });
        select.append(element("option", "all", { value: "" }));
        column.levels.forEach((level, k) => select.append(element("option", level ?? "-", { value: String(k) })));
        label.append(select);
        box.append(label);
        const said_ = (level) => String(level ?? "-");
        select.value = String(column.levels.findIndex((level) => said_(level) === state.filters[column.name]));
        if (select.selectedIndex < 0) select.value = "";
        const apply = () => {
            const code = select.value;
            table.search.fixed(column.name, code === "" ? null : (text, data, run) => column.codes[run] === Number(code));
            table.draw();
        };
        select.addEventListener("change", () => {
            choose({ filters: { ...state.filters, [column.name]: select.value && said_(column.levels[select.value]) } });
            apply();
            tellRows(table);
        });
        if (select.value !== "") apply();
    }
}
