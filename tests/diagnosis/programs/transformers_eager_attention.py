# cause: attention_scores
# from: vllm-project/speculators#881
# what: eager attention with sequences of 4096 tokens
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def load_model():
    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=16,
        max_position_embeddings=4096,
        attn_implementation="eager",  #? #! attn_implementation="sdpa",
        use_cache=False,
    )
    with torch.device("cuda"):
        return LlamaForCausalLM(config)


def train(model, steps, batch_size, length):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(steps):
        ids = torch.randint(0, model.config.vocab_size, (batch_size, length), device="cuda")
        loss = model(input_ids=ids, labels=ids).loss  #?
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, loss.item())


if __name__ == "__main__":
    train(load_model(), steps=3, batch_size=2, length=4096)
