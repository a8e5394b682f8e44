# cause: tensors_kept
# from: huggingface/transformers#7232
# what: Trainer.predict keeps the logits of every batch on the GPU before it moves them to the CPU
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments


class Prompts(Dataset):
    def __init__(self, count, length, vocabulary):
        self.ids = torch.randint(0, vocabulary, (count, length))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "attention_mask": torch.ones_like(self.ids[index])}


def best_tokens(logits, labels):
    return logits.argmax(dim=-1)


def build_model():
    config = LlamaConfig(vocab_size=64000, hidden_size=2560, intermediate_size=6912, num_hidden_layers=36,
                         num_attention_heads=20, num_key_value_heads=20, use_cache=False)
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float16)


def main():
    model = build_model()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            per_device_eval_batch_size=24,
            eval_do_concat_batches=False,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=args)  #? #! trainer = Trainer(model=model, args=args, preprocess_logits_for_metrics=best_tokens)
        result = trainer.predict(Prompts(288, 256, 64000))  #?
    print("batches predicted:", len(result.predictions))


if __name__ == "__main__":
    main()
