// Numbers as people read them, and the few sums that the page does itself.

// Three digits, as host.words.significant says them.
function significant(number) {
    if (Math.abs(number) >= 100) return Math.round(number).toLocaleString("en-US");
    return number === 0 ? "0.00" : expanded(number.toPrecision(3));
}

function expanded(text) {
    return text.includes("e") ? text.replace(/e([+-])(\d)$/, "e$10$2") : text;
}

function said(number) {
    if (number === null || number === undefined || Number.isNaN(number)) return "-";
    if (number === Infinity) return "missed";
    return Number.isInteger(number) ? String(number) : significant(number);
}

function intervalSaid([from, to]) {
    if (Number.isNaN(from)) return "-";
    return from === Infinity ? "missed" : to === Infinity ? `${said(from)} or more` : `${said(from)} to ${said(to)}`;
}

// As NumPy has it: of an even number of values the mean of the two in the middle.
function median(values) {
    const ordered = Float64Array.from(values).sort();
    const middle = ordered.length >> 1;
    return ordered.length % 2 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
}

// In the order of rows: what is not known is last.
function bySeconds(a, b) {
    const [first, second] = [a, b].map((row) => (row.isKnown ? row.seconds : NaN));
    return Number.isNaN(first) - Number.isNaN(second) || first - second || a.label.localeCompare(b.label);
}

function escaped(text) {
    const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
    return String(text).replace(/[&<>"']/g, (letter) => entities[letter]);
}

// An element with text, which is never read as HTML.
function element(tag, text, attributes = {}) {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
}

function listed(names) {
    return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}
