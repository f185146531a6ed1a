// Charts by Vega-Lite: what is drawn, in the colours of the page.

const darkness = matchMedia("(prefers-color-scheme: dark)");

function theme() {
    const [text, line] = darkness.matches ? ["#e6e6e6", "#4a4e57"] : ["#222", "#ddd"];
    return {
        background: "transparent",
        view: { stroke: line },
        axis: { labelColor: text, titleColor: text, gridColor: line, domainColor: line, tickColor: line, labelLimit: innerWidth < 600 ? 110 : 220 },
        text: { color: text },
        aria: false, // the table below says the same
    };
}

function colorScale(model) {
    const range = model.algorithms.map(({ color }) => inTheme(color));
    return { domain: model.algorithms.map(({ name }) => name), range };
}

// A colour that was made for white paper.
function inTheme(color) {
    if (!darkness.matches) return color;
    const parts = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
    return `rgb(${parts.map((part) => Math.round(part + 0.4 * (255 - part))).join(",")})`;
}

// The chart takes the place of the one before; of several asked for at once the last one counts.
const asked = new Map();
async function draw(id, description, spec, isLarge = false) {
    const number = (asked.get(id) ?? 0) + 1;
    asked.set(id, number);
    const node = document.createElement("div");
    node.style.width = "100%";
    const place = document.getElementById(id);
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", description);
    const measured = { width: Math.max(place.clientWidth - 4, 200), ...spec, config: theme() };
    const tooltip = { theme: darkness.matches ? "dark" : "light" };
    const autosize = { type: "fit", contains: "padding" };
    // The page's policy allows no expression to be made a function: `ast` has them interpreted.
    const options = { mode: "vega-lite", renderer: isLarge ? "canvas" : "svg", actions: false, ast: true, tooltip };
    const made = await vegaEmbed(node, { autosize, ...measured }, options);
    if (asked.get(id) !== number) return made.finalize();
    place.finalize?.();
    place.finalize = () => made.finalize();
    place.replaceChildren(node);
}

// A sentence in place of a chart.
function clear(id, sentence) {
    asked.set(id, (asked.get(id) ?? 0) + 1);
    const place = document.getElementById(id);
    place.removeAttribute("role");
    place.removeAttribute("aria-label");
    place.replaceChildren(element("p", sentence));
}

const MAX_SVG_POINTS = 3000;

function scaleOf(isLog, zero = false) {
    return isLog ? { type: "log", nice: false } : { type: "linear", zero };
}

const OVER = { time_s: "training time (s)", step: "steps", bytes_sent: "MB sent by a worker" };

function drawCurves(model, situation, target) {
    const values = [], left = { scores: 0, infinite: 0 };
    for (const setting of situation.settings) {
        const { name, label, is_timed } = model.settings[setting];
        if (isHidden(name) || (!is_timed && state.over === "time_s")) continue;
        for (const run of model.runsOf[setting]) values.push(...curveOf(model, run, name, label, left));
    }
    if (!values.length) return clear("curves", "No run that is shown has an evaluation here.");
    const isThere = target !== undefined && !(state.logY && target <= 0);
    const x = { field: "x", type: "quantitative", title: OVER[state.over], scale: scaleOf(state.logX) };
    const y = { field: "score", type: "quantitative", title: situation.metric, scale: scaleOf(state.logY) };
    const color = { field: "name", type: "nominal", scale: colorScale(model), legend: null };
    const tooltip = [
        { field: "label", title: "algorithm" }, { field: "seed" }, { field: "score", title: situation.metric },
        { field: "seconds", title: "seconds", format: ".4~g" }, { field: "step" }, { field: "mb", title: "MB sent", format: ".4~g" },
    ];
    document.getElementById("curves-note").textContent =
        "A line for each run; hover over it for its values and seed." +
        (left.scores ? ` ${left.scores} evaluations at zero or below have no place on a logarithmic axis.` : "") +
        (left.infinite ? ` ${left.infinite} evaluations with infinite scores are not drawn.` : "");
    return draw("curves", `${situation.metric} over ${OVER[state.over]}, a line a run`, {
        height: 380,
        data: { values },
        layer: [
            { mark: { type: "line", strokeWidth: 1.3, opacity: 0.75 }, encoding: { x, y, color, detail: { field: "run" } } },
            { mark: { type: "point", filled: true, size: 70, opacity: 0 }, encoding: { x, y, color, tooltip } },
            ...(isThere ? [{ mark: { type: "rule", strokeDash: [4, 4] }, data: { values: [{}] }, encoding: { y: { datum: target, type: "quantitative" }, color: { value: theme().text.color } } }] : []),
        ],
    }, values.length > MAX_SVG_POINTS);
}

function curveOf(model, run, name, label, left) {
    const [steps, seconds, scores, mb] = ["step", "time_s", "score", "bytes_sent"].map((axis) => model.curve(axis, run));
    const along = { time_s: seconds, step: steps, bytes_sent: mb }[state.over];
    const points = [];
    for (let k = 0; k < scores.length; k++) {
        if (Number.isNaN(along[k])) continue;
        if (!Number.isFinite(scores[k])) left.infinite++;
        else if ((state.logX && along[k] <= 0) || (state.logY && scores[k] <= 0)) left.scores++;
        else points.push({ run, name, label, seed: model.get("seed", run), x: along[k], score: scores[k], step: steps[k], seconds: seconds[k], mb: mb[k] });
    }
    return points;
}

function drawTimes(model, situation, { rows, target }) {
    const shown = rows.filter((row) => row.isTimed && !isHidden(row.name));
    shown.sort(bySeconds);
    if (!shown.length) return clear("times", "No algorithm that is shown has a time here.");
    const marks = marksOf(model, shown);
    const numbers = [...marks.medians, ...marks.seeds, ...marks.intervals, ...marks.open].map(({ x }) => x);
    const isLog = state.logX && numbers.every((x) => x > 0);
    const title = `seconds to ${situation.metric} ${target}`;
    const scale = numbers.length ? scaleOf(isLog, true) : { domain: [0, 1] };
    const sort = shown.map((row) => row.label);
    const encoding = {
        x: { field: "x", type: "quantitative", title, scale },
        y: { field: "label", type: "nominal", title: null, sort, scale: { domain: sort } },
        color: { field: "name", type: "nominal", scale: colorScale(model), legend: null },
        tooltip: [
            { field: "label", title: "algorithm" }, { field: "median", title: "median (s)" },
            { field: "interval", title: "95 % interval (s)" }, { field: "seeds", title: "seeds (s)" },
        ],
    };
    const layer = timesLayers(marks, encoding).filter(({ data }) => data.values.length);
    const intervals = marks.intervals.length + marks.open.length ? ", with 95 % intervals" : "";
    return draw("times", `${title}, by algorithm${intervals}`, { height: 20 * shown.length + 50, layer });
}

// What is drawn of each row: its seeds, their median and its interval, or a word.
function marksOf(model, rows) {
    const marks = { medians: [], seeds: [], intervals: [], open: [], words: [] };
    for (const { name, label, runs, times, isKnown, seconds, interval: [x, end] } of rows) {
        const seeds = runs.map((run, k) => `${model.get("seed", run) ?? "-"}: ${isKnown || times[k] < Infinity ? said(times[k]) : "not known"}`);
        const told = { name, label, seeds: seeds.join(", "), median: isKnown ? said(seconds) : "not known", interval: intervalSaid([x, end]) };
        if (isKnown && seconds < Infinity) marks.medians.push({ ...told, x: seconds });
        else marks.words.push({ ...told, word: isKnown ? "missed" : "not known" });
        if (x < Infinity) (end < Infinity ? marks.intervals : marks.open).push({ ...told, x, end });
        runs.forEach((run, k) => times[k] < Infinity && marks.seeds.push({ ...told, seed: model.get("seed", run), x: times[k] }));
    }
    return marks;
}

function timesLayers({ medians, seeds, intervals, open, words }, encoding) {
    const { y, tooltip } = encoding;
    const ofSeed = [...tooltip, { field: "seed" }, { field: "x", title: "this seed (s)", format: ".4~g" }];
    const rule = { type: "rule", strokeWidth: 2 };
    return [
        { data: { values: intervals }, mark: rule, encoding: { ...encoding, x2: { field: "end" } } },
        { data: { values: open }, mark: { ...rule, strokeDash: [4, 3] }, encoding: { ...encoding, x2: { value: "width" } } },
        { data: { values: seeds }, mark: { type: "point", filled: true, size: 40, opacity: 0.5 }, encoding: { ...encoding, tooltip: ofSeed } },
        { data: { values: medians }, mark: { type: "tick", thickness: 4, size: 16 }, encoding },
        { data: { values: words }, mark: { type: "text", align: "left", dx: 6 }, encoding: { y, x: { value: { expr: "width" } }, text: { field: "word" }, tooltip } },
    ];
}
