# cause: graph_kept
# from: huggingface/transformers#6999
# what: a custom compute_loss keeps a second loss, which is never used for backward, on the trainer with its graph
import tempfile

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Documents(Dataset):
    def __init__(self, count, length, vocabulary):
        self.ids = torch.randint(0, vocabulary, (count, length))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class SmoothedTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.plain_losses = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        logits = outputs.logits[:, :-1].flatten(0, 1)
        targets = labels[:, 1:].flatten()
        loss = F.cross_entropy(logits, targets, label_smoothing=0.1)
        plain = F.cross_entropy(logits, targets)  #?
        self.plain_losses.append(plain)  #? #! self.plain_losses.append(plain.item())
        return (loss, outputs) if return_outputs else loss


def main():
    config = GPT2Config(vocab_size=32000, n_positions=256, n_embd=256, n_layer=4, n_head=4)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(output_dir=folder, per_device_train_batch_size=24, max_steps=24, logging_strategy="no",
                                 save_strategy="no", report_to=[], disable_tqdm=True)
        trainer = SmoothedTrainer(model=GPT2LMHeadModel(config), args=args, train_dataset=Documents(600, 256, 32000))
        trainer.train()
        print("steps recorded:", len(trainer.plain_losses))


if __name__ == "__main__":
    main()
