// Reads what experiments/report/page/packing.py has packed.

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
    const count = octets.length / 8;
    const ordered = new Uint8Array(octets.length);
    for (let byte = 0; byte < 8; byte++) {
        for (let k = 0; k < count; k++) ordered[8 * k + byte] = octets[byte * count + k];
    }
    return new Float64Array(ordered.buffer);
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

// The value of a packed column in a row.
function valueOf(column, row) {
    const code = column.codes === 0 ? 0 : column.codes[row];
    const value = column.levels[code];
    return value === "inf" ? Infinity : value;
}

// Those columns that have a value in a row, as [name, value].
function entriesOf(columns, row) {
    return Object.entries(columns)
        .map(([name, column]) => [name, valueOf(column, row)])
        .filter(([, value]) => value !== null);
}
