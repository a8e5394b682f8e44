# cause: tensors_kept
# from: huggingface/sentence-transformers#522
# what: token embeddings of every document are kept in a dict on the card
import argparse

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, vocabulary, width, layers):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids):
        return self.layers(self.embed(ids))


def index_corpus(model, shards, shard_size, length, vocabulary):
    bank = {}
    for shard in range(shards):
        ids = torch.randint(0, vocabulary, (shard_size, length), device="cuda")
        with torch.no_grad():
            vectors = model(ids)
        bank[f"shard-{shard}"] = nn.functional.normalize(vectors, dim=-1)  #? #! bank[f"shard-{shard}"] = nn.functional.normalize(vectors.mean(dim=1), dim=-1)
    return bank


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=50)
    parser.add_argument("--shard-size", type=int, default=512)
    parser.add_argument("--length", type=int, default=256)
    args = parser.parse_args()
    model = Encoder(20000, 768, 4).cuda().eval()
    bank = index_corpus(model, args.shards, args.shard_size, args.length, 20000)
    print("shards", len(bank))
