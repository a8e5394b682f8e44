# cause: kv_cache
# from: huggingface/transformers#10240
# what: many returned sequences of a long prompt make the cache of keys and values too large
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def load_model():
    config = LlamaConfig(vocab_size=32000, hidden_size=768, intermediate_size=1536, num_hidden_layers=24,
                         num_attention_heads=12, num_key_value_heads=12, max_position_embeddings=2048,
                         eos_token_id=None, bos_token_id=None, pad_token_id=0)
    with torch.device("cuda"):
        return LlamaForCausalLM(config).half().eval()


def continuations(model, prompt, samples, new_tokens):
    return model.generate(  #?
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=True,
        top_p=0.95,
        max_new_tokens=new_tokens,
        num_return_sequences=samples,  #?
    )


def main():
    model = load_model()
    prompts = torch.randint(1, 32000, (2, 1, 1024), device="cuda")
    for number, prompt in enumerate(prompts):
        texts = continuations(model, prompt, 256, 8)  #? #! texts = continuations(model, prompt, 32, 8)
        print("prompt", number, tuple(texts.shape))


if __name__ == "__main__":
    main()
