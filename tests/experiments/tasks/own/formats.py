"""Small data sets in the files that they are published in."""

import io
import tarfile
import wave
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

PEOPLE, PLACES = ("ann", "bob", "cat", "dan"), ("rome", "paris", "oslo", "lima")


def tokenizer(folder: Path) -> Path:
    """Words and single characters, cut as BERT's."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = [*PEOPLE, *PLACES, "lives", "in", "where", "does", "live", "?", ".", "yes", "no"]
    vocabulary = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    return folder


def questions(size: int) -> list[dict]:
    """SQuAD's rows."""
    rows = []
    for number in range(size):
        person, place = PEOPLE[number % 4], PLACES[number // 2 % 4]
        other = f"{PEOPLE[(number + 1) % 4]} lives in {PLACES[number % 3]} . "
        context = f"{other}{person} lives in {place} ."
        start = len(context) - 2 - len(place)
        answers = {"text": [place], "answer_start": [start]}
        question = f"where does {person} live ?"
        rows.append({"id": str(number), "question": question, "context": context})
        rows[-1]["answers"] = answers
    return rows


def write(rows: list[dict], file: Path) -> None:
    """As the suffix says; Parquet in row groups of four."""
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    if file.suffix == ".parquet":
        parquet.write_table(table, file, row_group_size=4)
    elif file.suffix == ".arrow":
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table, max_chunksize=4)
    else:
        import json

        file.write_text("\n".join(json.dumps(row) for row in rows))


def squad(root: Path, suffix: str = ".parquet", held_out: int = 7) -> Path:
    """12 questions to learn from."""
    write(questions(12), root / "plain_text" / f"train-00000-of-00001{suffix}")
    write(questions(held_out), root / "plain_text" / f"validation-00000-of-00001{suffix}")
    return root


def speech_commands(root: Path) -> Path:
    """Two words, low and high tones, of three speakers, one of whom is for each part."""
    for number, word in enumerate(("down", "up")):
        for speaker in ("ada", "ben", "eve"):
            file = root / word / f"{speaker}_nohash_0.wav"
            file.parent.mkdir(parents=True, exist_ok=True)
            tone = np.sin(2 * np.pi * (300 + 3000 * number) * np.arange(12_000) / 16_000)
            with wave.open(str(file), "wb") as recording:
                recording.setparams((1, 2, 16_000, 0, "NONE", ""))
                recording.writeframes((20_000 * tone).astype("<i2").tobytes())
    for name, speaker in (("validation_list.txt", "ben"), ("testing_list.txt", "eve")):
        lines = [f"{word}/{speaker}_nohash_0.wav" for word in ("down", "up")]
        (root / name).write_text("\n".join(lines))
    return root


def shards(root: Path, size: int = 5) -> Path:
    """Two shards of pictures as bright as their class."""
    root.mkdir(parents=True)
    for shard in range(2):
        with tarfile.open(root / f"train-{shard}.tar", "w") as file:
            for number in range(size):
                label = number % 2
                picture = io.BytesIO()
                Image.new("RGB", (12, 10), (200 * label,) * 3).save(picture, "PNG")
                parts = {"png": picture.getvalue(), "cls": str(label).encode()}
                for ending, content in parts.items():
                    member = tarfile.TarInfo(f"{shard}{number:04}.{ending}")
                    member.size = len(content)
                    file.addfile(member, io.BytesIO(content))
    return root
