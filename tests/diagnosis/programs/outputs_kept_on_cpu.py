# cause: none
# from: huggingface/transformers#7232
# what: evaluation under inference_mode that keeps all outputs, but in the memory of the machine
import torch
from torchvision.models import resnet50


class Evaluator:
    def __init__(self, model):
        self.model = model.cuda().eval()
        self.outputs, self.labels, self.total = [], [], 0

    @torch.inference_mode()
    def run(self, batches):
        for images, labels in batches:
            logits = self.model(images.cuda())
            self.total += torch.nn.functional.cross_entropy(logits, labels.cuda())
            self.outputs.append(logits.cpu())
            self.labels.append(labels)
        return torch.cat(self.outputs), torch.cat(self.labels)


def batches(count, size=128):
    for _ in range(count):
        yield torch.rand(size, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (size,))


evaluator = Evaluator(resnet50())
logits, labels = evaluator.run(batches(30))
print(logits.shape, labels.shape, float(evaluator.total))
