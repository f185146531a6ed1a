// The runs: their curves, and what they come to at a target.

class Model {
    constructor(explored, numbers) {
        Object.assign(this, explored);
        let start = 0;
        this.sequences = this.curves.lengths.map((length) => {
            start += length;
            return numbers.subarray(start - length, start);
        });
        this.runsOf = this.settings.map(() => []);
        this.setting.forEach((setting, run) => this.runsOf[setting].push(run));
        this.column = Object.fromEntries(this.table.columns.map((column) => [column.name, column]));
        this.count = this.setting.length;
        this.color = new Map(this.algorithms.map(({ name, color }) => [name, color]));
    }

    curve(axis, run) {
        return this.sequences[this.curves.ids[axis][run]];
    }

    // What a column of the table of runs says of a run; null where there is no such column.
    get(name, run) {
        return name in this.column ? valueOf(this.column[name], run) : null;
    }

    // Seconds of the first evaluation that reached the target, Infinity for a miss.
    timeTo(target, run, isLower) {
        if (this.get("status", run) !== "completed") return Infinity;
        const scores = this.curve("score", run);
        const at = scores.findIndex((score) => (isLower ? score <= target : score >= target));
        return at < 0 ? Infinity : this.curve("time_s", run)[at];
    }

    targetsOf(situation) {
        return this.problems[situation.problem].targets;
    }

    // Every setting of a situation at its target of that place in the grid, first come first.
    ranked(situation, place) {
        const target = this.targetsOf(situation)[place];
        const letters = situation.ties[place];
        const rows = situation.settings.map((setting, k) => {
            const runs = this.runsOf[setting];
            const times = runs.map((run) => this.timeTo(target, run, situation.is_lower));
            const isTimed = this.settings[setting].is_timed; // else its workers shared a GPU
            return {
                ...this.settings[setting],
                setting,
                runs,
                times,
                isTimed,
                isKnown: isTimed && letters[k] !== "u",
                isTied: letters[k] === "t",
                seconds: isTimed ? median(times) : NaN,
                missed: times.filter((time) => time === Infinity).length,
            };
        });
        const timed = rows.filter((row) => row.isTimed);
        const isDecided = timed.every((row) => row.isKnown);
        const baseline = rows.find((row) => row.setting === situation.settings[situation.baselines[place]]);
        for (const row of rows) {
            const isPlaced = isDecided && row.isKnown && row.seconds < Infinity;
            row.place = isPlaced ? 1 + timed.filter((other) => other.seconds < row.seconds).length : NaN;
            row.speedup = baseline && row.isKnown ? baseline.seconds / row.seconds : NaN;
            row.isBaseline = row === baseline;
        }
        return { rows, isDecided, target };
    }
}
