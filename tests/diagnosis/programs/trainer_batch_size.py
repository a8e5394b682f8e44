# cause: batch_too_large
# from: huggingface/transformers#549
# what: per_device_train_batch_size of 64 with sequences of 512 tokens
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(Dataset):
    def __init__(self, count, length=512, vocabulary=30522):
        self.ids = torch.randint(0, vocabulary, (count, length))
        self.labels = torch.randint(0, 5, (count,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": self.labels[index]}


def build_model():
    config = BertConfig(num_labels=5)
    return BertForSequenceClassification(config)


def main():
    model = build_model()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=64,  #? #! per_device_train_batch_size=16, gradient_accumulation_steps=4,
            max_steps=2,
            learning_rate=2e-5,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=args, train_dataset=Reviews(256))
        trainer.train()  #?


if __name__ == "__main__":
    main()
