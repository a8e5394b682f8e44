# cause: kv_cache
# from: huggingface/transformers#30704
# what: long documents are scored chunk by chunk, and the cache of all earlier chunks is carried on
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def load_model():
    config = LlamaConfig(vocab_size=8000, hidden_size=1024, intermediate_size=2048, num_hidden_layers=12,
                         num_attention_heads=16, num_key_value_heads=16, max_position_embeddings=65536)
    with torch.device("cuda"):
        return LlamaForCausalLM(config).half().eval()


@torch.inference_mode()
def score(model, documents, chunk):
    total, cache = 0.0, None
    for part in documents.split(chunk, dim=1):
        output = model(input_ids=part, labels=part, past_key_values=cache, use_cache=True)  #?
        cache = output.past_key_values  #? #! cache = None
        total += output.loss.item()
    return total


def main():
    documents = torch.randint(0, 8000, (8, 40960), device="cuda")
    print("score", score(load_model(), documents, chunk=1024))


if __name__ == "__main__":
    main()
