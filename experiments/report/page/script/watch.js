// A page that is served asks whether there is a newer one, and shows that.

const ASK_EVERY_MS = 2000;

function watch() {
    const { version } = document.body.dataset;
    if (!version) return;
    setInterval(async () => {
        const failure = document.getElementById("failure");
        try {
            const newest = await (await fetch("version", { cache: "no-store" })).text();
            failure.hidden = true;
            if (newest !== version && !document.querySelector("dialog[open]")) location.reload();
        } catch {
            failure.textContent = "What serves this page has ended: it shows the runs as they were then.";
            failure.hidden = false;
        }
    }, ASK_EVERY_MS);
}
