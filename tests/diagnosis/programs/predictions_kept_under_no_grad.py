# cause: tensors_kept
# from: fastai/fastai#483
# what: the logits of every image are appended to a list on the card, under no_grad
import torch
from torchvision.models.segmentation import lraspp_mobilenet_v3_large


class Predictor:
    def __init__(self, classes=21):
        self.model = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=classes)
        self.model.cuda().eval()

    @torch.no_grad()
    def predict(self, batches):
        predictions = []
        for images in batches:
            logits = self.model(images)["out"]  #?
            predictions.append(logits)  #? #! predictions.append(logits.argmax(dim=1).to(torch.uint8).cpu())
        return predictions


def camera(batches, size=(512, 640)):
    for _ in range(batches):
        yield torch.rand(16, 3, *size, device="cuda")


predictor = Predictor()
predictions = predictor.predict(camera(45))
print("images", sum(len(p) for p in predictions))
