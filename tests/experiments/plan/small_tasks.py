"""Tasks of one's own data, with small files."""

from pathlib import Path

from tests.experiments.tasks.own import formats, made


def own_words(root: Path) -> dict[str, list[str]]:
    """Overrides of the tasks of one's own data, of which small files are written below `root`."""
    rows = [{"sentence1": "ann", "sentence2": "bob", "label": n % 2, "idx": n} for n in range(4)]
    for part in ("train", "validation"):
        formats.write(rows, root / "glue" / f"{part}.parquet")
    (root / "text").write_bytes(bytes(range(256)) * 40)
    words = f"task.tokenizer={formats.tokenizer(root / 'words')}"
    return {
        "text": [f"task.path={root / 'text'}"],
        "cifar10": [f"task.root={made.cifar(root / 'cifar')}"],
        "image_folder": [f"task.root={made.pictures(root / 'pictures')}"],
        "speech_commands": [f"task.root={formats.speech_commands(root / 'speech')}"],
        "squad": [f"task.root={formats.squad(root / 'squad')}", words, "task.max_tokens=24"],
        "glue": ["task.name=mrpc", f"task.root={root / 'glue'}", words, "task.max_tokens=10"],
    }
