// Two algorithms beside each other, in each situation that has both.

const PAIR_COLUMNS = [
    { title: "situation", isWord: true }, { title: "target", isWord: true }, { title: "first (s)" },
    { title: "second (s)" }, { title: "second over first" }, { title: "by seed", isWord: true },
];

class PairView {
    constructor(DataTable, model, targetView) {
        Object.assign(this, { model, targetView });
        this.table = makeTable(DataTable, document.getElementById("pair"), PAIR_COLUMNS, []);
        const labels = [...new Set(model.settings.map(({ label }) => label))].sort();
        for (const [id, choice, usual] of [["pair-first", "first", 0], ["pair-second", "second", 1]]) {
            const select = document.getElementById(id);
            select.append(...labels.map((label) => element("option", label, { value: label })));
            if (!labels.includes(state[choice])) state[choice] = this.usual(labels, usual);
            select.value = state[choice];
            select.addEventListener("change", () => choose({ [choice]: select.value }));
        }
        onChange(() => this.show());
        this.show();
    }

    // The first of the first situation, and its baseline or the second.
    usual(labels, place) {
        const [situation] = this.model.situations;
        const [first, second] = situation.settings.map((setting) => this.model.settings[setting].label);
        const baseline = this.model.settings[situation.baseline]?.label;
        return (place ? (baseline !== first && baseline) || second : first) ?? labels[0];
    }

    show() {
        const rows = this.model.situations.map((situation) => this.row(situation)).filter(Boolean);
        this.table.clear().rows.add(rows).draw();
        const ratios = rows.map((row) => row[4]).filter((ratio) => !Number.isNaN(ratio));
        const faster = ratios.filter((ratio) => ratio > 1).length;
        const slower = ratios.filter((ratio) => ratio < 1).length;
        document.getElementById("pair-note").textContent = rows.length
            ? `By the medians, ${state.first} is faster than ${state.second} in ${faster}, and slower in ${slower}, of ${rows.length} situations that have both. No statistics are behind this: ties with the first are above.`
            : `No situation has both ${state.first} and ${state.second}.`;
        this.difference();
    }

    row(situation) {
        const place = this.targetView.placeOf(situation);
        const targets = this.model.targetsOf(situation);
        if (!targets.length) return null;
        const { rows, target } = this.model.ranked(situation, place);
        const pair = [state.first, state.second].map((label) => rows.find((row) => row.label === label));
        if (pair.some((row) => row === undefined || !row.isKnown)) return null;
        const [first, second] = pair.map(({ seconds }) => seconds);
        const ratio = first === Infinity && second === Infinity ? NaN : second / first;
        return [situation.label, `${situation.metric} ${target}`, first, second, ratio, this.bySeed(...pair)];
    }

    bySeed(first, second) {
        const ofSecond = new Map(second.runs.map((run, k) => [this.model.get("seed", run), second.times[k]]));
        const pairs = first.runs
            .map((run, k) => [this.model.get("seed", run), first.times[k]])
            .filter(([seed]) => ofSecond.has(seed));
        return pairs.map(([seed, time]) => `${seed}: ${ratioSaid(ofSecond.get(seed), time)}`).join(", ");
    }

    difference() {
        const box = document.getElementById("pair-difference");
        const { settings, situations, runsOf } = this.model;
        const situation = [this.targetView.situation, ...situations].find((one) =>
            [state.first, state.second].every((label) => one.settings.some((setting) => settings[setting].label === label)),
        );
        if (situation === undefined) return box.replaceChildren();
        const [first, second] = [state.first, state.second].map(
            (label) => runsOf[situation.settings.find((setting) => settings[setting].label === label)][0],
        );
        box.replaceChildren(
            element("h3", `What their configurations differ in (${situation.label})`),
            differenceTable(this.model, first, second, [state.first, state.second]),
        );
    }
}

function ratioSaid(top, bottom) {
    if (top === Infinity && bottom === Infinity) return "both missed";
    if (top === Infinity) return "the second missed";
    return bottom === Infinity ? "the first missed" : significant(top / bottom);
}
