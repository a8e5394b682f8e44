"""Train a small GPT-2 from scratch with the transformers Trainer on an in-memory dataset."""
import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class RandomTokens(Dataset):
    def __init__(self, samples, length, vocab_size):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, vocab_size, (samples, length), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=16000, n_positions=512, n_embd=512, n_layer=6, n_head=8)
    model = GPT2LMHeadModel(config)
    train_dataset = RandomTokens(args.batch_size * args.steps, 256, config.vocab_size)

    with tempfile.TemporaryDirectory() as output_dir:
        training_args = TrainingArguments(
            output_dir=output_dir,
            per_device_train_batch_size=args.batch_size,
            max_steps=args.steps,
            learning_rate=5e-4,
            bf16=args.bf16,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=training_args, train_dataset=train_dataset)
        trainer.train()

    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
