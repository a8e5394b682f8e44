# cause: tensors_kept
# from: huggingface/transformers#7232
# what: all logits of the validation are kept on the card for one metric at the end
import torch
from torch import nn


class WordModel(nn.Module):
    def __init__(self, words=32000, width=512):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.rnn = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


def top_k_accuracy(logits, labels, k=5):
    return (logits.topk(k, dim=-1).indices == labels[..., None]).any(-1).float().mean()


def evaluate(model, batches):
    model.eval()
    results = {"logits": [], "labels": []}
    with torch.inference_mode():
        for ids in batches:
            ids = ids.cuda()
            logits = model(ids[:, :-1])  #?
            results["logits"].append(logits)  #? #! results["logits"].append(top_k_accuracy(logits, ids[:, 1:]).item())
            results["labels"].append(ids[:, 1:])
    #! return sum(results["logits"]) / len(results["logits"])
    scores = [top_k_accuracy(l, y) for l, y in zip(results["logits"], results["labels"])]
    return torch.stack(scores).mean().item()


model = WordModel().cuda()
batches = [torch.randint(0, 32000, (32, 129)) for _ in range(40)]
print("top 5 accuracy", evaluate(model, batches))
