// The runs: their curves, and what they come to at a target.

class Model {
    constructor(explored, numbersOfAxes) {
        Object.assign(this, explored);
        this.table = restored(this.table, this.arrays);
        const axes = numbersOfAxes.values();
        let [numbers, start] = [axes.next().value, 0];
        this.sequences = this.curves.lengths.map((length) => {
            while (start + length > numbers.length) [numbers, start] = [axes.next().value, 0];
            start += length;
            return numbers.subarray(start - length, start);
        });
        this.runsOf = this.settings.map(() => []);
        this.setting.forEach((setting, run) => this.runsOf[setting].push(run));
        this.column = Object.fromEntries(this.table.columns.map((column) => [column.name, column]));
        this.count = this.setting.length;
        this.statistics = new Statistics(this.rules);
        this.color = new Map(this.algorithms.map(({ name, color }) => [name, color]));
    }

    curve(axis, run) {
        return this.sequences[this.curves.ids[axis][run]];
    }

    // What a column of the table of runs says of a run; null where there is no such column.
    get(name, run) {
        return name in this.column ? valueOf(this.column[name], run) : null;
    }

    // Seconds until a straight line between two evaluations reached the target, Infinity for a miss. Where evaluations
    // cannot be read, all or the last, it is what the run recorded, NaN at other targets. A run that a search ended, and
    // that is not at work, had reached its own.
    timeTo(target, run, { recorded, is_lower: isLower }) {
        if (!["completed", "ended early"].includes(this.get("status", run))) return Infinity;
        const scores = this.curve("score", run);
        const at = scores.findIndex((score) => (isLower ? score <= target : score >= target));
        if (at >= 0) {
            const [before, seconds] = [Math.max(at - 1, 0), this.curve("time_s", run)];
            const part = (target - scores[before]) / (scores[at] - scores[before]);
            if (!Number.isFinite(part) || part === 1) return seconds[at];
            return seconds[before] + part * (seconds[at] - seconds[before]);
        }
        if (!this.unread.includes(run)) return Infinity;
        return target === recorded ? (this.get("time_to_accuracy_s", run) ?? Infinity) : NaN;
    }

    // Nobody knows what it will reach.
    isAtWork(run) {
        return this.get("status", run) === this.at_work;
    }

    targetsOf(situation) {
        return this.problems[situation.problem].targets;
    }

    // A setting of a situation, by its place there, at the target of that place in the grid.
    at(situation, target, place, k) {
        const setting = situation.settings[k];
        const letter = situation.ties[place][k];
        const runs = this.runsOf[setting].filter((run) => !this.isAtWork(run));
        const times = runs.map((run) => this.timeTo(target, run, situation));
        // Else its workers shared a GPU, or none of its runs has ended.
        const isTimed = this.settings[setting].is_timed && runs.length > 0;
        const isKnown = isTimed && letter !== "u";
        return {
            ...this.settings[setting],
            setting,
            runs,
            times,
            isTimed,
            isKnown,
            isFirst: letter === "f",
            isTied: letter === "t",
            seconds: isTimed ? median(times) : NaN,
            interval: isKnown ? this.statistics.medianInterval(times) : UNKNOWN,
            missed: times.filter((time) => time === Infinity).length,
        };
    }

    // Every setting of a situation at its target of that place in the grid.
    ranked(situation, place) {
        const target = this.targetsOf(situation)[place];
        const rows = situation.settings.map((_, k) => this.at(situation, target, place, k));
        const timed = rows.filter((row) => row.isTimed);
        const isDecided = timed.every((row) => row.isKnown);
        const baseline = rows.find((row) => row.setting === situation.settings[situation.baselines[place]]);
        for (const row of rows) {
            const isPlaced = isDecided && row.isKnown && row.seconds < Infinity;
            row.place = isPlaced ? 1 + timed.filter((other) => other.seconds < row.seconds).length : NaN;
            row.isBaseline = row === baseline;
            const isCompared = baseline && row.isKnown && row.seconds < Infinity;
            const speedup = isCompared && !row.isBaseline ? this.ratio(baseline, row) : [NaN, ...UNKNOWN];
            [row.speedup, ...row.speedups] = row.isBaseline ? [1, ...UNKNOWN] : speedup;
        }
        return { rows, isDecided, target };
    }

    // How many times the times of `second` those of `first` are, and the 95 % interval; without one the ratio of medians.
    ratio(first, second) {
        const isLarge = Math.min(first.runs.length, second.runs.length) >= this.statistics.rules.min_seeds;
        const pair = this.paired(first, second);
        const interval = isLarge ? this.statistics.ratioInterval(...pair) : UNKNOWN;
        const ratio = first.seconds / second.seconds;
        const isInside = 0 < ratio && ratio < Infinity && !Number.isNaN(interval[0]);
        return [isInside ? this.statistics.ratio(...pair) : ratio, ...interval];
    }

    // With the first of a situation all others are compared at once, by Holm's correction, too.
    isTie(first, second) {
        if ((first.isFirst && second.isTied) || (second.isFirst && first.isTied)) return true;
        return this.statistics.isTie(...this.paired(first, second));
    }

    // The times of both, seed by seed; where seeds differ, come twice or are unknown, of all, not paired.
    paired(first, second) {
        const bySeed = new Map(second.runs.map((run, k) => [this.get("seed", run), second.times[k]]));
        const seeds = new Set(first.runs.map((run) => this.get("seed", run)));
        const isPaired =
            [seeds.size, bySeed.size, second.runs.length].every((size) => size === first.runs.length) &&
            [...seeds].every((seed) => seed !== null && bySeed.has(seed));
        if (!isPaired) return [first.times, second.times, false];
        return [first.times, first.runs.map((run) => bySeed.get(this.get("seed", run))), true];
    }
}
