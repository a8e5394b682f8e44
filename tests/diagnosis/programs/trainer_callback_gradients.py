# cause: tensors_kept
# from: common
# what: a TrainerCallback clones all gradients before every optimizer step
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Tokens(Dataset):
    def __init__(self, count, length, vocabulary):
        self.ids = torch.randint(0, vocabulary, (count, length))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class GradientMonitor(TrainerCallback):
    def __init__(self):
        self.history = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        gradients = {}
        for name, parameter in model.named_parameters():
            gradients[name] = parameter.grad.clone()  #? #! gradients[name] = parameter.grad.norm().item()
        self.history.append(gradients)  #?


def main():
    config = LlamaConfig(vocab_size=16000, hidden_size=1536, intermediate_size=4096, num_hidden_layers=8,
                         num_attention_heads=12, num_key_value_heads=12)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    monitor = GradientMonitor()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(output_dir=folder, per_device_train_batch_size=4, max_steps=14, logging_strategy="no",
                                 save_strategy="no", report_to=[], disable_tqdm=True)
        trainer = Trainer(model=model, args=args, train_dataset=Tokens(64, 128, 16000), callbacks=[monitor])
        trainer.train()
    print("recorded", len(monitor.history), "steps")


if __name__ == "__main__":
    main()
