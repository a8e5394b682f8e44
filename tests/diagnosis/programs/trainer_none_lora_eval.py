# cause: none
# from: common
# what: LoRA on a large frozen half-precision model, with an evaluation that keeps only the best tokens
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments


class Dialogues(Dataset):
    def __init__(self, count, length, vocabulary):
        self.ids = torch.randint(0, vocabulary, (count, length))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def keep_best(logits, labels):
    return logits.argmax(dim=-1)


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions == prediction.label_ids).mean())}


def main():
    config = LlamaConfig(vocab_size=32000, hidden_size=2560, intermediate_size=6912, num_hidden_layers=24,
                         num_attention_heads=20, num_key_value_heads=20)
    with torch.device("cuda"):
        base = AutoModelForCausalLM.from_config(config, dtype=torch.float16)
        model = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(output_dir=folder, per_device_train_batch_size=2, per_device_eval_batch_size=8, max_steps=3,
                                 logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True)
        trainer = Trainer(model=model, args=args, train_dataset=Dialogues(8, 128, 32000), eval_dataset=Dialogues(48, 128, 32000),
                          compute_metrics=accuracy, preprocess_logits_for_metrics=keep_best)
        trainer.train()
        print(sorted(trainer.evaluate()))


if __name__ == "__main__":
    main()
