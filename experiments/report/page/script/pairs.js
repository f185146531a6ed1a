// Two algorithms beside each other, in each situation that has both.

const PAIR_COLUMNS = [
    { title: "situation", isWord: true }, { title: "target", isWord: true }, { title: "first (s)", endless: "missed" },
    { title: "second (s)", endless: "missed" }, { title: "second over first", endless: "the second missed" },
    { title: "ratio from", endless: "no end" }, { title: "ratio to", endless: "no end" },
    { title: "verdict", isWord: true }, { title: "by seed", isWord: true },
];

const VERDICT = PAIR_COLUMNS.findIndex(({ title }) => title === "verdict");
const isFaster = (label) => `${label} is faster`;

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
        onChange((what) => {
            const isPair = what.some((name) => ["first", "second"].includes(name));
            if (isPair || what.some((name) => ["situation", "target"].includes(name))) this.show();
            if (isPair) tell(() => this.told());
        });
        this.show();
    }

    // The first of the first situation, and its baseline, the second, or any other.
    usual(labels, place) {
        const [situation] = this.model.situations;
        const [first, second] = situation.settings.map((setting) => this.model.settings[setting].label);
        const baseline = this.model.settings[situation.baseline]?.label;
        const other = () => labels.find((label) => label !== first);
        return place ? (baseline !== first && baseline) || second || other() : first;
    }

    show() {
        const situations = state.first === state.second ? [] : this.model.situations;
        const rows = situations.map((situation) => this.row(situation)).filter(Boolean);
        this.table.clear().rows.add(rows).draw();
        this.verdicts = rows.map((row) => row[VERDICT]);
        document.getElementById("pair-note").textContent = this.note();
        this.difference();
    }

    // What a screen reader says of the verdicts, in one sentence.
    told() {
        const { sentence, rest } = this.counted();
        return sentence + (rest ? `; in ${rest} one or both missed the target, or are not known.` : ".");
    }

    counted() {
        const { first, second } = state, { verdicts } = this;
        if (first === second) return { sentence: `Both are ${first}: choose another one`, rest: 0 };
        if (!verdicts.length) return { sentence: `No situation has both ${first} and ${second}`, rest: 0 };
        const count = (verdict) => verdicts.filter((one) => one === verdict).length;
        const [faster, slower, ties] = [isFaster(first), isFaster(second), "tie"].map(count);
        const rest = verdicts.length - faster - slower - ties;
        const among = `in ${faster} of ${verdicts.length} situations that have both`;
        return { sentence: `${first} is faster than ${second} ${among}, slower in ${slower}, and ties in ${ties}`, rest };
    }

    note() {
        const { sentence, rest } = this.counted();
        if (!this.verdicts.length) return `${sentence}.`;
        const others = rest ? ` In ${rest} of them the median run of one or both missed the target, or its time is not known.` : "";
        return `${sentence}.${others} Each situation is compared by itself, so one in twenty equal pairs may be told apart by chance. With the first of a situation, the ties are those of the table above.`;
    }

    row(situation) {
        const place = this.targetView.placeOf(situation);
        const target = this.model.targetsOf(situation)[place];
        if (target === undefined) return null;
        const places = [state.first, state.second].map((label) =>
            situation.settings.findIndex((setting) => this.model.settings[setting].label === label),
        );
        if (places.includes(-1)) return null;
        const [first, second] = places.map((k) => this.model.at(situation, target, place, k));
        const seconds = [first, second].map((row) => (row.isKnown ? row.seconds : NaN));
        const isRatio = seconds[0] < Infinity && !Number.isNaN(seconds[1]);
        return [
            situation.label, `${situation.metric} ${target}`, ...seconds,
            ...(isRatio ? this.model.ratio(second, first) : [NaN, ...UNKNOWN]),
            this.verdict(first, second), first.isKnown && second.isKnown ? this.bySeed(first, second) : "",
        ];
    }

    verdict(first, second) {
        if (!first.isKnown || !second.isKnown) return "not known";
        const missed = [first, second].filter((row) => row.seconds === Infinity);
        if (missed.length) return missed.length > 1 ? "both missed" : `${missed[0].label} missed`;
        if (this.model.isTie(first, second)) return "tie";
        return isFaster((first.seconds < second.seconds ? first : second).label);
    }

    // Of each seed that is known, and has one run of either.
    bySeed(first, second) {
        const [ofFirst, ofSecond] = [first, second].map(({ runs, times }) => {
            const seeds = runs.map((run) => this.model.get("seed", run));
            const isOne = (seed) => seed !== null && seeds.indexOf(seed) === seeds.lastIndexOf(seed);
            return new Map(seeds.map((seed, k) => [seed, times[k]]).filter(([seed]) => isOne(seed)));
        });
        const pairs = [...ofFirst].filter(([seed]) => ofSecond.has(seed));
        return pairs.map(([seed, time]) => `${seed}: ${ratioSaid(ofSecond.get(seed), time)}`).join(", ");
    }

    difference() {
        const box = document.getElementById("pair-difference");
        const { settings, situations, runsOf } = this.model;
        if (state.first === state.second) return box.replaceChildren();
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
