# cause: tensors_kept
# from: huggingface/transformers#24315
# what: the hidden states of all layers and batches are kept on the GPU
import torch
from transformers import DistilBertConfig, DistilBertModel


def load_encoder():
    with torch.device("cuda"):
        return DistilBertModel(DistilBertConfig(dim=768, n_layers=6, n_heads=12, hidden_dim=3072)).eval()


def batches(count, size, length):
    for _ in range(count):
        yield torch.randint(0, 30522, (size, length), device="cuda")


@torch.inference_mode()
def collect_hidden_states(encoder, data):
    hidden_states_list = []
    for ids in data:
        output = encoder(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)  #?
        hidden_states_list.append(output.hidden_states)  #? #! hidden_states_list.append([state[:, 0].cpu() for state in output.hidden_states])
    return hidden_states_list


def main():
    encoder = load_encoder()
    states = collect_hidden_states(encoder, batches(count=30, size=128, length=256))
    print(len(states), "batches,", len(states[0]), "layers each")


if __name__ == "__main__":
    main()
