// Unpacks the page, and makes it what it is.

async function start() {
    const style = element("style", await unpackedText("data-tables-style"));
    document.head.prepend(style); // before the page's own, which has the last word
    const axes = document.body.dataset.axes.split(" ").map((axis) => unpackedNumbers(`numbers-${axis}`));
    const [{ default: DataTable }, , explored, ...numbers] = await Promise.all([
        imported("data-tables"), imported("vega"), unpackedText("runs"), ...axes,
    ]);
    const model = new Model(JSON.parse(explored), numbers);
    recall(model);
    document.documentElement.classList.add("ready");
    document.documentElement.classList.toggle("dark", darkness.matches); // as DataTables asks
    darkness.addEventListener("change", () => document.documentElement.classList.toggle("dark", darkness.matches));
    setUpOrder(DataTable);
    setUpAlgorithms(model);
    setUpAxes(model);
    setUpRuns(DataTable, model);
    const targetView = new TargetView(DataTable, model);
    if (document.getElementById("pairs")) new PairView(DataTable, model, targetView);
    remember(); // also what nobody has chosen, but sees
    await targetView.drawn;
    enhanceTables(DataTable);
    document.documentElement.classList.add("complete");
}

watch();
try {
    await start();
} catch (error) {
    const failure = document.getElementById("failure");
    failure.textContent = `Nothing can be explored here: this browser cannot run the page (${error}). The sections below are whole.`;
    failure.hidden = false;
    throw error;
}
