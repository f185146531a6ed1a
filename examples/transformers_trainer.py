"""transformers' Trainer by gradients of 8 bits:

    torchrun --nproc-per-node 2 examples/transformers_trainer.py

A GPT-2 of 0.1 M parameters learns the text of Python's help, byte by byte.
"""

import tempfile
from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

import bagua_algos
from bagua_algos.trainers.transformers import RelaxedTrainer

LENGTH = 64
text = torch.tensor(list("".join(topics.values()).encode("ascii", "ignore")))
rows = text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)
dataset = [{"input_ids": row, "labels": row} for row in rows]

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=128,
    n_positions=LENGTH,
    n_embd=64,
    n_layer=2,
    n_head=2,
    bos_token_id=0,
    eos_token_id=0,
)
model = GPT2LMHeadModel(config)
trainer = RelaxedTrainer(
    model,
    TrainingArguments(
        output_dir=tempfile.gettempdir(),
        use_cpu=True,
        max_steps=40,
        per_device_train_batch_size=16,
        learning_rate=1e-2,
        lr_scheduler_type="cosine",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=dataset[:-256],
    eval_dataset=dataset[-256:],
    algorithm=bagua_algos.ByteGrad(),
)
trainer.train()
loss = trainer.evaluate()["eval_loss"]
checksum = sum(p.sum() for p in model.parameters())
print(f"worker {trainer.args.process_index}: loss {loss:.3f}, weights {checksum:.6f}")
