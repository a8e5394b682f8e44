# cause: static_state
# from: pytorch/pytorch#9439
# what: full fine-tuning of a billion weights with AdamW in float32
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, Trainer, TrainingArguments


class Instructions(Dataset):
    def __init__(self, rows, length):
        self.rows, self.length = rows, length

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        ids = torch.full((self.length,), 17 + i)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def load_model():
    # the sizes of pythia-1b
    config = GPTNeoXConfig(vocab_size=50304, hidden_size=2048, num_hidden_layers=16, num_attention_heads=8,
                           intermediate_size=8192, use_cache=False)
    with torch.device("cuda"):
        model = GPTNeoXForCausalLM(config)  #?
    #! model = get_peft_model(model, LoraConfig(r=16, target_modules=["query_key_value"], task_type="CAUSAL_LM"))
    print(f"{sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e6:.0f} M trainable")
    return model


training_args = TrainingArguments(
    output_dir="/tmp/pythia-instruct",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=2,
    max_steps=3,
    learning_rate=1e-5,
    optim="adamw_torch",  #?
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)

trainer = Trainer(model=load_model(), args=training_args, train_dataset=Instructions(64, 256))
trainer.train()  #?
