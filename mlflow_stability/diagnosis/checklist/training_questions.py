"""Questions about what is trained on, how fast, and what the losses say."""

from __future__ import annotations

from mlflow_stability.diagnosis.checklist.answers import (
    by_hand,
    change,
    clipping,
    found,
    gap,
    rate_left,
    reported,
    setting,
    spikes,
    warm_up,
)
from mlflow_stability.diagnosis.checklist.check_findings import data, gradients, labels, learning_rate, validation
from mlflow_stability.diagnosis.checklist.question import Question

QUESTIONS: dict[str, Question] = {
    "data": Question(
        "Is a batch, or the data, the cause?",
        "Inspect the batch at that step, and train on it alone; check shuffling, duplicates and labels.",
        data,
    ),
    "batch": Question(
        "Is the batch of that step unusual?",
        "Compare its length, padding, value range and labels with those of the ten batches before it.",
        reported("unusual batch", "broken_batch", "batch_discarded"),
    ),
    "recurs": Question(
        "Does it recur, and at even distances?",
        "Divide the distance by the steps of an epoch: a whole number means that the same samples come back.",
        spikes,
    ),
    "repeated": Question(
        "Does the loader return new batches?",
        "Hash the first tensor of 100 batches; count equal hashes. Check the sampler and the workers' seeds.",
        found("repeated_data"),
    ),
    "shuffling": Question(
        "Are the samples shuffled, and shuffled anew in each epoch?",
        "Print the first ten indices of two epochs; with DistributedSampler call set_epoch.",
        setting("shuffle|sampler", "shuffling"),
    ),
    "labels": Question(
        "Is the loss below chance level?",
        "Overfit ten samples on purpose; if that fails, labels or the loss are wrong.",
        labels,
    ),
    "overfit_batch": Question(
        "Can the model overfit one batch?",
        "Train on one batch of 10 samples for 300 steps without regularisation: the loss must go near zero.",
        by_hand,
    ),
    "gradients": Question(
        "Are the gradient norms normal, in every layer?",
        "Log the norm before clipping, of the model and by layer; clip at 1.0.",
        gradients,
    ),
    "learning_rate": Question(
        "Are the learning rate and its schedule right?",
        "Log it; try 3 times higher and lower; warm up over 1-5 % of the steps.",
        learning_rate,
    ),
    "rate_jump": Question(
        "Did the learning rate jump?",
        "Plot scheduler.get_last_lr() over all steps before training; check the step after a resume.",
        found("learning_rate_jump"),
    ),
    "warm_up": Question(
        "Is there a warm-up?",
        "Start at 1 % of the peak rate and rise over 1-5 % of the steps; compare the first 1000 steps.",
        warm_up,
    ),
    "rate_left": Question(
        "Is the learning rate still above 1 % of its peak?",
        "Compare the schedule's length with the number of optimizer steps, not of micro-batches.",
        rate_left,
    ),
    "clipping": Question(
        "Are gradients clipped?",
        "Call torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) after unscaling and before optimizer.step().",
        clipping,
    ),
    "zero_grad": Question(
        "Are gradients cleared between steps?",
        "Print the norm before each backward pass: it must be 0, or None, once for each optimizer step.",
        reported("missing zero_grad()", "missing_zero_grad"),
    ),
    "update_ratio": Question(
        "Are updates of a healthy size beside the weights?",
        "Compute the norm of the update over the norm of the weights, by layer: about 0.001 is healthy.",
        found("update_ratio_high"),
    ),
    "tiny_updates": Question(
        "Do the updates change the weights at all?",
        "Compare the weights before and after 100 steps; below a relative change of 1e-5 nothing is learned.",
        found("update_ratio_low"),
    ),
    "weight_decay": Question(
        "Is the weight decay right?",
        "Try 0 and 0.1; leave biases and normalisation out; weights that shrink without end have too much.",
        setting("weight_decay|wd", "weight decay"),
    ),
    "batch_size": Question(
        "Is the batch large enough for this learning rate?",
        "Double the batch by accumulation: if the trouble goes, the gradient was too noisy for the rate.",
        setting("batch|batch_size|train_batch_size|per_device_train_batch_size", "the batch size"),
    ),
    "configuration": Question(
        "Did a setting change before it?",
        "Compare the configuration with that of the last run that worked; print optimizer.param_groups.",
        reported("change of settings", "configuration_changed"),
    ),
    "model_check": Question(
        "Is anything in the model frozen, unused or missing from the optimizer?",
        "List parameters with requires_grad False, with grad None after a step, or in no parameter group.",
        reported("remark of the model check", "model_lint", "evaluation_mode"),
    ),
    "noise": Question(
        "Does the loss oscillate rather than fall?",
        "Lower the learning rate to a tenth for 200 steps: if the loss falls at once, the rate was too high.",
        found("oscillation", "slow_progress"),
    ),
    "reduction": Question(
        "Is the loss a mean, and not a sum?",
        "Halve the batch size: the loss and the gradient norm of a mean stay, those of a sum are halved.",
        change("loss", "loss", rise=10.0),
    ),
    "validation": Question(
        "Does the validation loss follow the training loss?",
        "Validate often enough to see the best step, on data that was never trained on.",
        validation,
    ),
    "gap": Question(
        "How wide is the gap between validation and training?",
        "Evaluate the training set in eval mode as well: only that gap is without the effect of dropout.",
        gap,
    ),
    "leak": Question(
        "Are training and validation data separate, and of one distribution?",
        "Look for samples in both by hash; train a classifier to tell the two apart: it must fail.",
        by_hand,
    ),
    "eval_mode": Question(
        "Is the model in eval mode while it is validated?",
        "Print model.training in the validation loop; batch norm and dropout must not be in training mode.",
        by_hand,
    ),
    "epochs": Question(
        "How often was each sample seen?",
        "Divide steps times batch size by the number of samples; above 4 epochs memorising begins for most models.",
        setting("epochs?|num_(?:train_)?epochs|max_epochs|n_epochs", "the number of epochs"),
    ),
    "model_size": Question(
        "Is the model too large for the data?",
        "Halve width or depth: if the validation loss stays, the model was larger than the data supports.",
        setting("parameters_total|parameters_trainable|n_params|num_parameters", "the model's size"),
    ),
    "dropout": Question(
        "Is there dropout?",
        "Try 0.1 and 0.3; a training loss that hardly rises while validation improves means that it helps.",
        setting("dropout|drop_rate|hidden_dropout_prob|attn_dropout|p_drop", "dropout"),
    ),
    "augmentation": Question(
        "Is the training data augmented?",
        "Add the usual augmentation of the field; show ten augmented samples with their labels.",
        setting("augment(?:ation)?s?|mixup|cutmix|label_smoothing|randaugment", "augmentation"),
    ),
    "seed": Question(
        "Does it happen with another seed?",
        "Train three seeds to this step; if one alone fails, compare their batches around it.",
        setting("seed|random_seed|manual_seed", "the seed"),
    ),
    "rollbacks": Question(
        "Was the training rolled back, and did it help?",
        "Compare the loss of the attempts at the same step; the same failure twice needs another setting.",
        reported("rollback", "rollback", "give_up"),
    ),
}
"""By key."""
