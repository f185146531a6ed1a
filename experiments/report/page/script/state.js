// What the reader has chosen, and is told of it.

const state = {
    hidden: [], situation: "", over: "time_s", logX: true, logY: false, target: null,
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

// A page that is watched loads itself again, and goes on where its reader was.
function remember() {
    if (!document.body.dataset.version) return;
    sessionStorage.setItem("relaxlab", JSON.stringify(state));
}

function recall() {
    if (!document.body.dataset.version) return;
    Object.assign(state, JSON.parse(sessionStorage.getItem("relaxlab") ?? "{}"));
}

const isHidden = (name) => state.hidden.includes(name);
