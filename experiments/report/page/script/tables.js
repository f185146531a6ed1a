// Tables that can be sorted, searched and downloaded, by DataTables.

const MISSED = 1e308, MISSING = 1.7e308; // in the order of numbers behind all of them, and last either way
const KNOWN = "known"; // the type of a column of numbers, some of which nobody knows
const EXPORTED = {
    orthogonal: "export",
    columns: ":not(.no-export)",
    stripHtml: false,
    format: { header: (text, column, node) => node.textContent },
};
const SORTS = { orderable: ": sort", orderableReverse: ": invert", orderableRemove: ": unsort" }; // said with each cell

function setUpOrder(DataTable) {
    const by = (sign) => (a, b) => (a === MISSING) - (b === MISSING) || sign * (a - b);
    DataTable.type(KNOWN, { className: "dt-type-numeric", order: { asc: by(1), desc: by(-1) } });
}

// `columns` are {title, isWord, className, endless}, `rows` arrays of strings and numbers. `endless` says Infinity in
// another word.
function makeTable(DataTable, node, columns, rows, options = {}) {
    return new DataTable(node, {
        data: rows,
        columns: columns.map((column) => ({
            title: escaped(column.title),
            type: column.isWord ? "string" : KNOWN,
            className: column.className ?? (column.isWord ? "dt-body-left" : "dt-body-right"),
            render: column.render ?? (column.isWord ? renderWord : numberRenderer(column.endless)),
        })),
        ...common(node.id),
        ...options,
    });
}

function common(name) {
    const csv = {
        extend: "csvHtml5",
        text: "CSV of what is shown",
        filename: name,
        title: null,
        exportOptions: { ...EXPORTED, decodeEntities: false, escapeExcelFormula: true },
    };
    return {
        order: [],
        pageLength: 25,
        autoWidth: false,
        deferRender: true,
        language: { aria: SORTS },
        layout: { topStart: { buttons: [csv] }, topEnd: "search", bottomStart: "info", bottomEnd: "paging" },
        initComplete() {
            const box = this.api().table().container();
            nameParts(box);
            box.querySelector(".dt-info").setAttribute("aria-live", "off"); // it changes with the target, too
            box.addEventListener("input", () => tellRows(this.api())); // of its search
            this.api().on("page", () => tellRows(this.api()));
        },
    };
}

const PARTS = { ".buttons-csv": "CSV of what is shown", "input[type=search]": "Search", ".dt-paging nav": "pages" };

// For screen readers, which list all buttons, fields and landmarks of a page.
function nameParts(box) {
    const { ariaLabel } = box.closest("[role=region]");
    for (const [selector, what] of Object.entries(PARTS)) box.querySelector(selector).ariaLabel = `${what}: ${ariaLabel}`;
}

function tellRows(table) {
    tell(() => table.table().container().querySelector(".dt-info").textContent);
}

function renderWord(value, purpose) {
    const text = value === null || value === undefined ? "" : String(value);
    return purpose === "display" || purpose === "filter" ? escaped(text) : text;
}

function numberRenderer(endless) {
    return (value, purpose) => {
        const isKnown = value !== null && !Number.isNaN(value), isEndless = Math.abs(value) === Infinity;
        const sign = value < 0 ? "-" : "";
        if (purpose === "display" || purpose === "filter") return escaped(isEndless ? endless ?? `${sign}infinite` : said(value));
        if (purpose === "export") return isEndless ? endless ?? `${sign}inf` : isKnown ? value : "";
        return isEndless ? Math.sign(value) * MISSED : isKnown ? value : MISSING;
    };
}

// The number that a cell of a section's table begins with, such as "1,340 (1,200 to 1,500)" or "2/3 (21 to 94 %)".
function leadingNumber(text, header) {
    if (text.startsWith("missed")) return header.startsWith("speed-up") ? 0 : MISSED;
    if (text === "the baseline missed") return MISSED;
    if (/^-?inf\b/.test(text)) return text.startsWith("-") ? -MISSED : MISSED;
    const found = text.replaceAll(",", "").match(/^(-?\d*\.?\d+(?:e[+-]?\d+)?)(?:\/(\d+))?/);
    return found ? Number(found[1]) / Number(found[2] ?? 1) : MISSING;
}

// The tables that are there without scripts, each once it comes near the window.
function enhanceTables(DataTable) {
    const observer = new IntersectionObserver((entries) => {
        for (const { isIntersecting, target } of entries) {
            if (!isIntersecting) continue;
            observer.unobserve(target);
            enhance(DataTable, target);
        }
    }, { rootMargin: "600px" });
    for (const box of document.querySelectorAll("[data-table]")) observer.observe(box);
}

function enhance(DataTable, box) {
    const node = box.querySelector("table");
    const headers = [...node.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    const first = node.querySelectorAll("tbody tr:first-child td");
    const columnDefs = headers.map((header, k) =>
        first[k]?.classList.contains("number")
            ? { targets: k, type: KNOWN, render: (text, purpose) => (purpose === "sort" ? leadingNumber(text, header) : text) }
            : { targets: k, type: "html" },
    );
    const options = common(box.dataset.table);
    options.layout.topStart.buttons[0].exportOptions.decodeEntities = true; // text read of HTML
    const table = new DataTable(node, { ...options, columnDefs });
    const place = headers.indexOf("algorithm");
    if (place >= 0) hideRows(table, (row) => isHidden(table.cell(row, place).node().textContent.trim()));
}

// Leave out the rows of which `isLeftOut` says so, whenever something is chosen.
function hideRows(table, isLeftOut) {
    table.search.fixed("algorithms", (text, data, row) => !isLeftOut(row));
    onChange((what) => what.includes("hidden") && table.draw());
    if (state.hidden.length) table.draw();
}
