// The target that the reader chooses: who is first there, who ties, who has missed it.

const RANK_COLUMNS = [
    { title: "place" }, { title: "algorithm", isWord: true }, { title: "seconds", endless: "missed" },
    { title: "seconds from", endless: "missed" }, { title: "seconds to", endless: "missed" }, { title: "missed", isWord: true },
    { title: "speed-up over the best baseline", endless: "the baseline missed" },
    { title: "speed-up from", endless: "no end" }, { title: "speed-up to", endless: "no end" },
    { title: "ties with the first", isWord: true }, { title: "seconds by seed", isWord: true },
];

class TargetView {
    constructor(DataTable, model) {
        this.model = model;
        this.slider = document.getElementById("target");
        this.table = makeTable(DataTable, document.getElementById("ranks"), RANK_COLUMNS, []);
        this.slider.addEventListener("input", () => choose({ target: this.targets[this.slider.value] }));
        document.getElementById("recorded-target").addEventListener("click", () => choose({ target: this.situation.recorded }));
        onChange((what) => {
            this.show(what);
            if (what.some((name) => ["situation", "target"].includes(name))) tell(() => this.told());
        });
        darkness.addEventListener("change", () => this.show(["hidden"]));
        addEventListener("resize", () => this.resized());
        this.show(["situation"]);
    }

    get situation() {
        return this.model.situations[state.situation];
    }

    get targets() {
        return this.model.targetsOf(this.situation);
    }

    // Where the chosen target is among those of the situation; where it is none of them, its own is.
    placeOf(situation) {
        const targets = this.model.targetsOf(situation);
        const chosen = situation.problem === this.situation.problem ? state.target : null;
        const places = [chosen, situation.recorded].map((target) => targets.indexOf(target));
        return places.find((place) => place >= 0) ?? Math.floor(targets.length / 2);
    }

    resized() {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.width !== innerWidth && this.show(["hidden"]), 200);
    }

    show(what) {
        this.width = innerWidth;
        const isMoved = what.some((name) => ["situation", "target", "hidden", "logX"].includes(name));
        const { situation, targets } = this;
        const place = targets.length ? this.placeOf(situation) : -1;
        const target = targets[place];
        this.slide(situation, place);
        const isDrawn = what.some((name) => ["situation", "target", "hidden", "over", "logX", "logY"].includes(name));
        this.drawn = Promise.all([
            isDrawn && drawCurves(this.model, situation, target),
            isMoved && place >= 0 && this.rank(situation, place),
        ]);
    }

    slide(situation, place) {
        const { targets, slider } = this;
        document.getElementById("target-name").textContent = `Target ${situation.metric}`;
        slider.max = targets.length - 1;
        slider.value = place;
        slider.disabled = !targets.length;
        slider.setAttribute("aria-valuetext", `${situation.metric} ${targets[place] ?? "none"}`);
        document.getElementById("target-value").textContent = targets[place] ?? "none";
        document.getElementById("recorded-target").disabled = situation.recorded === null;
    }

    async rank(situation, place) {
        const ranked = this.model.ranked(situation, place);
        const rows = ranked.rows.filter((row) => !isHidden(row.name));
        rows.sort(bySeconds);
        this.table.clear().rows.add(rows.map((row) => this.cells(row))).draw();
        document.getElementById("target-note").textContent = this.note(situation, ranked) + this.aside(ranked);
        await drawTimes(this.model, situation, ranked);
    }

    cells(row) {
        const seeds = row.runs.map((run, k) => `${this.model.get("seed", run) ?? "-"}: ${said(row.times[k])}`);
        const untimed = row.runs.length ? "shared GPU" : this.model.at_work;
        const unknown = row.isTimed ? "not known" : untimed;
        return [
            row.place, row.label, row.isKnown ? row.seconds : NaN, ...row.interval,
            row.isKnown ? `${row.missed} of ${row.runs.length}` : unknown,
            row.speedup, ...row.speedups,
            row.isTied ? "ties" : "", row.isKnown ? seeds.join(", ") : unknown,
        ];
    }

    aside({ rows }) {
        return rows.some((row) => isHidden(row.name)) ? " Places count the algorithms that are not shown, too." : "";
    }

    // What a screen reader says of the chosen target: the note without a long list.
    told() {
        const { situation, targets } = this;
        if (!targets.length) return "";
        const named = (ties) => (ties.length > 2 ? `${ties.length} others` : listed(ties));
        return this.note(situation, this.model.ranked(situation, this.placeOf(situation)), named);
    }

    note(situation, { rows, isDecided, target }, named = listed) {
        const at = `${situation.is_simulated ? "Simulated: at" : "At"} ${situation.metric} ${target}`;
        const isUnread = rows.some((row) => row.times.some(Number.isNaN));
        const why = isUnread ? "the evaluations of some runs cannot be read" : "some runs ended before others, or at an easier target";
        if (!isDecided) return `${at} nobody knows who is first: ${why}.`;
        if (!rows.some((row) => row.isTimed)) return `${at} no algorithm has a time: no run has ended, or workers shared a GPU.`;
        const first = rows.find((row) => row.place === 1);
        const isAnyAtWork = rows.some((row) => row.is_timed && !row.runs.length);
        if (!first && isAnyAtWork) return `${at} nobody is there so far: some runs have not ended.`;
        if (!first) return `${at} nobody is there: all have missed it.`;
        const ties = rows.filter((row) => row.isTied).map((row) => row.label);
        const tied = ties.length ? `, and ties with ${named(ties)}` : "";
        const missed = rows.filter((row) => row.seconds === Infinity).length;
        return `${at} ${first.label} is first, in ${said(first.seconds)} s${tied}; ${missed} of ${rows.length} have missed it in the median run.`;
    }
}
