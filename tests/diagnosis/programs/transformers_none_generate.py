# cause: none
# from: common
# what: sampling with a large cache that fits and is freed after each prompt; the results go to the CPU
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def load_model():
    config = LlamaConfig(vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
                         num_attention_heads=16, num_key_value_heads=16, max_position_embeddings=2048,
                         eos_token_id=None, bos_token_id=None, pad_token_id=0)
    with torch.device("cuda"):
        return LlamaForCausalLM(config).half().eval()


def main():
    model = load_model()
    answers = []
    for _ in range(3):
        prompt = torch.randint(1, 32000, (64, 1024), device="cuda")
        tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, max_new_tokens=8)
        answers.append(tokens.cpu())
    print(len(answers), tuple(answers[0].shape))


if __name__ == "__main__":
    main()
