// The intervals and ties of experiments/report/statistics.py, function by function, for targets and
// pairs that are chosen here. The constants come from there, and a test holds both to equal numbers.

const UNKNOWN = [NaN, NaN];
const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);
const meanOf = (values) => sumOf(values) / values.length;
const isAllInfinite = (values) => values.every((value) => value === Infinity);
const isAnyInfinite = (values) => values.some((value) => value === Infinity);

// Of one value. That of several values of two samples is the sum over their sizes.
function varianceOf(values) {
    const mean = meanOf(values);
    return sumOf(values.map((value) => (value - mean) ** 2)) / (values.length - 1);
}

// 1 where both are equal, two misses among them.
const ratioOf = (top, bottom) => (top === bottom ? 1 : top / bottom);
const logRatios = (tops, bottoms) => tops.map((top, k) => Math.log(ratioOf(top, bottoms[k])));

class Statistics {
    constructor(rules) {
        this.rules = rules;
    }

    medianInterval(values) {
        if (values.length < this.rules.min_seeds) return UNKNOWN;
        if (values.some((value) => value <= 0)) return this.interval(values);
        if (values.every((value) => value === values[0])) return [values[0], values[0]];
        return this.interval(values.map(Math.log)).map(Math.exp);
    }

    // Of how many times `others` the `values` are; `isPaired`: the k-th of both are of one seed.
    ratioInterval(values, others, isPaired) {
        if (isPaired) return this.interval(logRatios(values, others)).map(Math.exp);
        if (isAllInfinite(values) || isAllInfinite(others)) {
            const isAlike = [values, others].every((own) => isAllInfinite(own) || !isAnyInfinite(own));
            const ratio = ratioOf(values[0], others[0]);
            return isAlike ? [ratio, ratio] : UNKNOWN;
        }
        if (isAnyInfinite(values) || isAnyInfinite(others)) return UNKNOWN;
        return this.welch(values.map(Math.log), others.map(Math.log));
    }

    // What that is the interval of, and in which it lies; of finite numbers where not in pairs.
    ratio(values, others, isPaired) {
        if (isPaired) return Math.exp(median(logRatios(values, others)));
        return Math.exp(meanOf(values.map(Math.log)) - meanOf(others.map(Math.log)));
    }

    isTie(times, others, isPaired) {
        const [first, second] = [median(times), median(others)];
        if (first === second) return true;
        let [low, high] = [ratioOf(first, second), ratioOf(first, second)];
        if (Math.min(times.length, others.length) >= this.rules.min_seeds) {
            [low, high] = this.ratioInterval(times, others, isPaired);
        }
        if (Number.isNaN(low)) {
            low = ratioOf(Math.min(...times), Math.max(...others));
            high = ratioOf(Math.max(...times), Math.min(...others));
        }
        return low <= 1 && 1 <= high;
    }

    // Of the median of numbers that may be infinite.
    interval(values) {
        const ordered = Array.from(values).sort((a, b) => (a < b ? -1 : Number(a > b)));
        if (ordered[0] === ordered.at(-1)) return [ordered[0], ordered[0]];
        if (ordered.length >= this.rules.by_order_seeds) {
            const mirrored = ordered.map((value) => -value).reverse();
            return [this.byOrder(ordered), -this.byOrder(mirrored)];
        }
        if (ordered.some((value) => Math.abs(value) === Infinity)) return UNKNOWN;
        const middle = meanOf(ordered);
        const half = this.students(ordered.length - 1) * Math.sqrt(varianceOf(ordered) / ordered.length);
        return [middle - half, middle + half];
    }

    // The lower bound.
    byOrder(ordered) {
        const [rank, share] = this.rules.places[ordered.length];
        const [lower, upper] = [ordered[rank - 1], ordered[rank]];
        return Math.abs(lower) === Infinity || Math.abs(upper) === Infinity ? lower : lower + share * (upper - lower);
    }

    welch(logs, others) {
        const middle = meanOf(logs) - meanOf(others);
        const errors = [logs, others].map((sample) => varianceOf(sample) / sample.length);
        const variance = sumOf(errors);
        if (variance === 0) return [Math.exp(middle), Math.exp(middle)];
        const sizes = [logs.length, others.length];
        const freedom = variance ** 2 / sumOf(errors.map((error, k) => error ** 2 / (sizes[k] - 1)));
        const half = this.students(freedom) * Math.sqrt(variance);
        return [Math.exp(middle - half), Math.exp(middle + half)];
    }

    // By how many standard errors an interval goes to each side: a series of Chebyshev polynomials.
    students(freedom) {
        const { students, least_freedom: least } = this.rules;
        const x = (2 * least) / freedom - 1;
        let [later, latest] = [0, 0];
        for (let k = students.length - 1; k > 0; k--) [later, latest] = [2 * x * later - latest + students[k], later];
        return x * later - latest + students[0];
    }
}
