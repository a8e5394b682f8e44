# cause: no_grad_missing
# from: pytorch/pytorch#1887
# what: a text classifier predicts with gradients and appends the outputs to a list
# args: --batch-size 64
import argparse

import torch
from torch import nn


class TextClassifier(nn.Module):
    def __init__(self, vocabulary=30000, width=512, layers=6, classes=20):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 8, 2048, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        hidden = self.encoder(self.embed(tokens))
        return self.head(hidden.mean(dim=1))


#! @torch.no_grad()
def predict(model, batches):
    predictions = []
    for tokens in batches:
        scores = model(tokens.cuda())  #?
        predictions.append(scores.softmax(dim=-1))  #?
    return torch.cat(predictions)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    args = parser.parse_args()
    with torch.device("cuda"):
        model = TextClassifier()
    model.eval()
    batches = [torch.randint(0, 30000, (args.batch_size, args.length)) for _ in range(16)]
    probabilities = predict(model, batches)
    print(probabilities.shape)


if __name__ == "__main__":
    main()
