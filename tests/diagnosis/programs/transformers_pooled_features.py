# cause: no_grad_missing
# from: huggingface/transformers#12286
# what: features of a text encoder are extracted with gradients on
import torch
from transformers import BertConfig, BertModel


class FeatureExtractor:
    def __init__(self):
        config = BertConfig(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048)
        with torch.device("cuda"):
            self.model = BertModel(config).eval()

    #! @torch.no_grad()
    def pooled(self, ids):
        output = self.model(input_ids=ids, attention_mask=torch.ones_like(ids))  #?
        return output.last_hidden_state[:, 0]  #?


def main():
    extractor = FeatureExtractor()
    features = []
    for number in range(24):
        ids = torch.randint(0, 30522, (32, 128), device="cuda")
        features.append(extractor.pooled(ids))  #?
    table = torch.cat(features)
    print("features", tuple(table.shape))


if __name__ == "__main__":
    main()
