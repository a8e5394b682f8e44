# cause: static_state
# from: huggingface/transformers#1256
# what: a model of 1.1 billion parameters fully trained in float32 with AdamW
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Instructions(Dataset):
    def __init__(self, count, length, vocabulary):
        self.ids = torch.randint(0, vocabulary, (count, length))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def build_model():
    config = LlamaConfig(vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
                         num_attention_heads=32, num_key_value_heads=4)
    with torch.device("cuda"):
        return LlamaForCausalLM(config)  #?


def main():
    model = build_model()  #?
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=1,
            max_steps=2,
            optim="adamw_torch",  #? #! optim="adafactor",
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=args, train_dataset=Instructions(8, 64, 32000))
        trainer.train()  #?


if __name__ == "__main__":
    main()
