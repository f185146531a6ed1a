// Reads what experiments/report/page/packing.py has packed.

const INFINITE = { inf: Infinity, "-inf": -Infinity };

async function unpacked(name) {
    const text = document.getElementById(`packed-${name}`).content.textContent.trim();
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
}

async function unpackedText(name) {
    return new TextDecoder().decode(await unpacked(name));
}

async function unpackedNumbers(name) {
    const octets = new Uint8Array(await unpacked(name));
    const [count] = new Uint32Array(octets.slice(0, 4).buffer);
    if (!count) return new Float64Array(ordered(octets.subarray(4), 8));
    const end = 4 + 8 * count;
    const levels = new Float64Array(ordered(octets.subarray(4, end), 8));
    return Float64Array.from(new Uint16Array(ordered(octets.subarray(end), 2)), (code) => levels[code]);
}

// Planes of bytes as numbers of `size` bytes.
function ordered(planes, size) {
    const count = planes.length / size;
    const octets = new Uint8Array(planes.length);
    for (let byte = 0; byte < size; byte++) {
        for (let k = 0; k < count; k++) octets[size * k + byte] = planes[byte * count + k];
    }
    return octets.buffer;
}

// The columns in a value, whose equal arrays were packed once.
function restored(value, arrays) {
    if (value === null || typeof value !== "object") return value;
    if (!Array.isArray(value) && typeof value.levels === "number") {
        return { ...value, levels: arrays[value.levels], codes: arrays[value.codes] };
    }
    const entries = Object.entries(value).map(([name, own]) => [name, restored(own, arrays)]);
    return Array.isArray(value) ? entries.map(([, own]) => own) : Object.fromEntries(entries);
}

async function imported(name) {
    const source = new Blob([await unpacked(name)], { type: "text/javascript" });
    const url = URL.createObjectURL(source);
    try {
        return await import(url);
    } finally {
        URL.revokeObjectURL(url);
    }
}

// The value of a packed column in a row. Of numbers JSON has none that are infinite.
function valueOf(column, row) {
    const code = column.codes.length === 1 ? 0 : column.codes[row];
    const value = column.levels[code];
    return column.is_word === false && value in INFINITE ? INFINITE[value] : value;
}

// Those columns that have a value in a row, as [name, value].
function entriesOf(columns, row) {
    return Object.entries(columns)
        .map(([name, column]) => [name, valueOf(column, row)])
        .filter(([, value]) => value !== null);
}
