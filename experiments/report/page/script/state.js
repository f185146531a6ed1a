// What the reader has chosen, and is told of it.

// `hidden` are names, `first` and `second` labels, and `situation` is a place among those of the model.
const state = {
    hidden: [], situation: 0, over: "time_s", logX: true, logY: false, target: null,
    first: "", second: "", filters: {},
};
const listeners = [];

const QUIET_MS = 500;
let telling;

// Calls `listener` whenever something was chosen.
function onChange(listener) {
    listeners.push(listener);
}

function choose(choices) {
    Object.assign(state, choices);
    remember();
    for (const listener of listeners) listener(Object.keys(choices));
}

// Has screen readers say what `sentence` gives, once nothing was chosen for a moment: of several the last.
function tell(sentence) {
    clearTimeout(telling);
    telling = setTimeout(() => (document.getElementById("told").textContent = sentence()), QUIET_MS);
}

const KEPT = "relaxlab choices";
const MAX_KEPT = 50; // runs of each choice
let choosable; // by what kind of choice: the folders of the runs of each value

// A page that is watched loads itself again, and goes on where its reader was. What is named or counted there is known
// by its runs: names, labels and places change with the runs that come.
function remember() {
    if (!choosable) return;
    const { names, labels, situations, targetsOf } = choosable;
    const of = (folders, value) => (folders.get(value) ?? []).slice(0, MAX_KEPT);
    const situation = Number(state.situation);
    sessionStorage.setItem(KEPT, JSON.stringify({
        ...state,
        hidden: state.hidden.flatMap((name) => of(names, name)),
        first: of(labels, state.first),
        second: of(labels, state.second),
        situation: of(situations, situation),
        target: targetsOf(situation).includes(state.target) ? state.target : null, // else another task's
    }));
}

function recall(model) {
    if (!document.body.dataset.version) return;
    choosable = choosableOf(model);
    const { names, labels, situations, targetsOf } = choosable;
    const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
    if (kept === null) return;
    const situation = mostOf(situations, kept.situation);
    const hidden = new Set(kept.hidden);
    Object.assign(state, kept, {
        hidden: [...names.keys()].filter((name) => names.get(name).some((folder) => hidden.has(folder))),
        first: mostOf(labels, kept.first) ?? "",
        second: mostOf(labels, kept.second) ?? "",
        situation: situation ?? 0,
        target: situation === undefined || kept.target === null ? null : nearest(targetsOf(situation), kept.target),
    });
}

function choosableOf(model) {
    const folder = (run) => model.get("place", run);
    const names = new Map(), labels = new Map();
    const add = (folders, value, run) => (folders.get(value) ?? folders.set(value, []).get(value)).push(folder(run));
    model.setting.forEach((setting, run) => {
        add(names, model.settings[setting].name, run);
        add(labels, model.settings[setting].label, run);
    });
    const situations = new Map(
        model.situations.map(({ settings }, k) => [k, settings.flatMap((setting) => model.runsOf[setting].map(folder))]),
    );
    return { names, labels, situations, targetsOf: (situation) => model.targetsOf(model.situations[situation]) };
}

// The value that has the most of these folders; undefined where none has any.
function mostOf(folders, wanted) {
    const own = new Set(wanted);
    const counts = [...folders].map(([value, all]) => [value, all.filter((folder) => own.has(folder)).length]);
    const [value, count] = counts.reduce((best, one) => (one[1] > best[1] ? one : best), [undefined, 0]);
    return count ? value : undefined;
}

function nearest(targets, target) {
    const off = (one) => Math.abs(one - target);
    return targets.length ? targets.reduce((best, one) => (off(one) < off(best) ? one : best)) : null;
}

const isHidden = (name) => state.hidden.includes(name);
