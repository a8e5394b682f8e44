# cause: tensors_kept
# from: huggingface/transformers#7232
# what: Trainer.predict gathers the logits of every batch on the GPU before it moves them to the CPU
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Sentences(Dataset):
    def __init__(self, count, length, vocabulary):
        self.ids = torch.randint(0, vocabulary, (count, length))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def best_tokens(logits, labels):
    return logits.argmax(dim=-1)


def main():
    config = GPT2Config(vocab_size=50257, n_positions=256, n_embd=256, n_layer=4, n_head=4)
    model = GPT2LMHeadModel(config)
    test_set = Sentences(480, 256, config.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            per_device_eval_batch_size=16,
            report_to=[],
            disable_tqdm=True,
            dataloader_num_workers=0,
        )
        trainer = Trainer(model=model, args=args)  #? #! trainer = Trainer(model=model, args=args, preprocess_logits_for_metrics=best_tokens)
        result = trainer.predict(test_set)  #?
    print("predictions", result.predictions.shape)


if __name__ == "__main__":
    main()
