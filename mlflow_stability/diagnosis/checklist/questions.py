"""The questions of all checklists: how to check each by hand, and where a run has the answer.

A question about one kind of finding is beside its detector instead: `FindingType.question`.
"""

from __future__ import annotations

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.diagnosis.causes.gradient import explosion_check
from mlflow_stability.diagnosis.causes.learning_rate import learning_rate_check, rate_too_low_check
from mlflow_stability.diagnosis.causes.overflow import large_input_check, overflow_check
from mlflow_stability.diagnosis.checklist.run_answers import (
    NON_FINITE,
    batch_finite,
    batch_of_its_step,
    best_validation,
    clipping,
    finite,
    first_non_finite,
    good_state,
    gradient_reach,
    how_it_ended,
    loss_fell,
    loss_scale,
    lost_gradients,
    memory,
    overflow,
    rate_left,
    rate_range,
    spikes,
    spikes_recur,
    validation_gap,
    warm_up,
)
from mlflow_stability.diagnosis.checklist.sources import (
    Question,
    ask,
    change,
    check,
    events,
    finding_or_none,
    findings,
    setting,
)
from mlflow_stability.kinds.catalog import TYPES, bare_noun_of
from mlflow_stability.vocabulary.result import Severity


def question_of(finding_type: type[FindingType]) -> Question:
    kind = finding_type.kind
    source = finding_or_none(kind) if issubclass(finding_type, Detector) else events(bare_noun_of(kind), kind)
    return ask(finding_type.question, source).by_hand(finding_type.check_by_hand)


QUESTIONS: dict[str, Question] = {
    finding_type.kind: question_of(finding_type) for finding_type in TYPES if finding_type.question
} | {
    "data": ask("Is a batch, or the data, the cause?", spikes).by_hand(
        "Inspect the batch at that step, and train on it alone; check shuffling, duplicates and labels."
    ),
    "batch": ask("Is the batch of that step unusual?", batch_of_its_step).by_hand(
        "Compare its length, padding, value range and labels with those of the ten batches before it."
    ),
    "recurs": ask("Does it recur, and at even distances?", spikes_recur).by_hand(
        "Divide the distance by the steps of an epoch: a whole number means that the same samples come back."
    ),
    "shuffling": ask(
        "Are the samples shuffled, and shuffled anew in each epoch?", setting("shuffling", "shuffle sampler")
    ).by_hand("Print the first ten indices of two epochs; with DistributedSampler call set_epoch."),
    "labels": ask("Is the loss below chance level?", findings("plateau"), loss_fell).by_hand(
        "Overfit ten samples on purpose; if that fails, labels or the loss are wrong."
    ),
    "overfit_batch": ask("Can the model overfit one batch?").by_hand(
        "Train on one batch of 10 samples for 300 steps without regularisation: the loss must go near zero."
    ),
    "gradients": ask(
        "Are the gradient norms normal, in every layer?",
        findings("gradient_explosion", "gradient_vanishing", least=Severity.WARNING),
        check(lost_gradients, explosion_check),
    ).by_hand("Log the norm before clipping, of the model and by layer; clip at 1.0."),
    "learning_rate": ask(
        "Are the learning rate and its schedule right?", rate_range, check(rate_too_low_check, learning_rate_check)
    ).by_hand("Log it; try 3 times higher and lower; warm up over 1-5 % of the steps."),
    "warm_up": ask("Is there a warm-up?", warm_up).by_hand(
        "Start at 1 % of the peak rate and rise over 1-5 % of the steps; compare the first 1000 steps."
    ),
    "rate_left": ask("Is the learning rate still above 1 % of its peak?", rate_left).by_hand(
        "Compare the schedule's length with the number of optimizer steps, not of micro-batches."
    ),
    "clipping": ask("Are gradients clipped?", clipping).by_hand(
        "Call torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) after unscaling and before optimizer.step()."
    ),
    "weight_decay": ask("Is the weight decay right?", setting("weight decay", "weight_decay wd")).by_hand(
        "Try 0 and 0.1; leave biases and normalisation out; weights that shrink without end have too much."
    ),
    "batch_size": ask(
        "Is the batch large enough for this learning rate?",
        setting("the batch size", "batch batch_size train_batch_size per_device_train_batch_size"),
    ).by_hand("Double the batch by accumulation: if the trouble goes, the gradient was too noisy for the rate."),
    "model_check": ask(
        "Is anything in the model frozen, unused or missing from the optimizer?",
        events("remark of the model check", "model_lint", "evaluation_mode"),
    ).by_hand("List parameters with requires_grad False, with grad None after a step, or in no parameter group."),
    "noise": ask("Does the loss oscillate rather than fall?", finding_or_none("oscillation", "slow_progress")).by_hand(
        "Lower the learning rate to a tenth for 200 steps: if the loss falls at once, the rate was too high."
    ),
    "reduction": ask(
        "Is the loss a mean, and not a sum?", findings("loss_sum"), change("loss", "loss", rise=10.0)
    ).by_hand("Halve the batch size: the loss and the gradient norm of a mean stay, those of a sum are halved."),
    "validation": ask(
        "Does the validation loss follow the training loss?", findings("overfitting"), best_validation
    ).by_hand("Validate often enough to see the best step, on data that was never trained on."),
    "gap": ask("How wide is the gap between validation and training?", validation_gap).by_hand(
        "Evaluate the training set in eval mode as well: only that gap is without the effect of dropout."
    ),
    "leak": ask("Are training and validation data separate, and of one distribution?").by_hand(
        "Look for samples in both by hash; train a classifier to tell the two apart: it must fail."
    ),
    "eval_mode": ask("Is the model in eval mode while it is validated?").by_hand(
        "Print model.training in the validation loop; batch norm and dropout must not be in training mode."
    ),
    "epochs": ask(
        "How often was each sample seen?",
        setting("the number of epochs", "epoch epochs num_epochs num_train_epochs max_epochs n_epochs"),
    ).by_hand(
        "Divide steps times batch size by the number of samples; above 4 epochs memorising begins for most models."
    ),
    "model_size": ask(
        "Is the model too large for the data?",
        setting("the model's size", "parameters_total parameters_trainable n_params num_parameters"),
    ).by_hand("Halve width or depth: if the validation loss stays, the model was larger than the data supports."),
    "dropout": ask(
        "Is there dropout?", setting("dropout", "dropout drop_rate hidden_dropout_prob attn_dropout p_drop")
    ).by_hand("Try 0.1 and 0.3; a training loss that hardly rises while validation improves means that it helps."),
    "augmentation": ask(
        "Is the training data augmented?",
        setting("augmentation", "augment augments augmentation augmentations mixup cutmix label_smoothing randaugment"),
    ).by_hand("Add the usual augmentation of the field; show ten augmented samples with their labels."),
    "seed": ask("Does it happen with another seed?", setting("the seed", "seed random_seed manual_seed")).by_hand(
        "Train three seeds to this step; if one alone fails, compare their batches around it."
    ),
    "rollbacks": ask(
        "Was the training rolled back, and did it help?", events("rollback", "rollback", "give_up")
    ).by_hand("Compare the loss of the attempts at the same step; the same failure twice needs another setting."),
    "locate": ask("Where did the first non-finite value appear?", first_non_finite, finite).by_hand(
        "Test every output with torch.isfinite in forward hooks; torch.autograd.set_detect_anomaly(True)."
    ),
    "inputs": ask("Are the inputs of that step finite and in range?", batch_finite).by_hand(
        "Test inputs and targets with torch.isfinite; look for empty targets, divisions by zero, logarithms of zero."
    ),
    "overflow": ask(
        "Did numbers overflow before they became NaN?", finite, overflow, check(large_input_check, overflow_check)
    ).by_hand("Look for an infinity before the first NaN; try bf16 or fp32; bound exponentials and divisions."),
    "numerics": ask("Are all values finite, and is the loss scale steady?", findings(*NON_FINITE), loss_scale).by_hand(
        "Train some steps in fp32; log the loss scale; use bf16 where the device has it."
    ),
    "activations_large": ask(
        "Did activations grow before it?", change("activation_max", "largest activation", rise=10.0)
    ).by_hand(
        "Print output.abs().max() of each block at the last good step; fp16 ends at 65504, bf16 and fp32 at 3e38."
    ),
    "precision": ask(
        "In which number format does it compute?",
        setting(
            "the number format",
            "precision mixed_precision autocast amp dtype torch_dtype parameter_types fp16 bf16 autocast_type",
        ),
    ).by_hand(
        "Train 200 steps before the trouble in fp32 with the same batches; if it passes, the format is the cause."
    ),
    "norm_eps": ask(
        "Is the eps of normalisation layers large enough?",
        setting(
            "the eps of normalisation layers", "layer_norm_eps layer_norm_epsilon rms_norm_eps norm_eps norm_epsilon"
        ),
    ).by_hand("Print it: 1e-5 for LayerNorm, 1e-6 for RMSNorm; below 1e-8 a nearly constant row is divided by zero."),
    "micro_batches": ask(
        "Is the loss of each micro-batch divided by their number?",
        findings("accumulation_sum gradients_discarded"),
        setting("gradient accumulation", "accumulation gradient_accumulation_steps accumulate_grad_batches"),
    ).by_hand("Compare the gradient norm of one batch with that of its micro-batches: it must be the same."),
    "memory_then": ask(
        "Did the device's memory change at that step?", change("memory_allocated", "device memory", rise=1.5)
    ).by_hand("Log torch.cuda.max_memory_allocated() in each step: a longer batch raises it at the step of the spike."),
    "good_state": ask("Is a good state saved?", good_state).by_hand(
        "Save a checkpoint first, before anything is changed: model, optimizer, schedule and random generators."
    ),
    "eps": ask("Is the optimizer's eps large enough for its number format?", setting("eps", "eps")).by_hand(
        "In fp16 an eps below 6e-8 is zero; raise it to 1e-6, or keep the optimizer's state in fp32."
    ),
    "beta2": ask(
        "Does Adam's second moment follow the gradient fast enough?", setting("beta2", "betas beta2 adam_beta2")
    ).by_hand("Train from the last checkpoint with beta2 = 0.95; if the spike is gone, beta2 was too high."),
    "optimizer_state": ask(
        "Is the optimizer's state finite?", change("momentum_norm", "norm of the momentum", rise=10.0)
    ).by_hand(
        "Test every tensor of optimizer.state_dict() with torch.isfinite; reset the state of those that are not."
    ),
    "anomaly": ask("Does the same batch fail again from the last good state?").by_hand(
        "Restore the last good checkpoint, run the saved batch twice; a different result points to the device."
    ),
    "loss_function": ask(
        "Is every part of the loss defined for its inputs?",
        events("origin of a non-finite value", "nan_origin", none="unknown"),
    ).by_hand(
        "Evaluate each term of the loss alone on the saved batch; look for log(0), sqrt(0), 0/0 and all-masked means."
    ),
    "io": ask("Do checkpoints or evaluations take the time?", events("failed checkpoint", "checkpoint_failed")).by_hand(
        "Mark slow steps and compare with the steps of checkpoints and evaluations; write in a thread."
    ),
    "skipped_rounding": ask(
        "Are updates large enough for the number format of the weights?", finding_or_none("update_ratio_low")
    ).by_hand("In bf16 an update below 0.4 % of a weight changes nothing: keep a copy of the weights in fp32."),
    "flow": ask("Does the gradient reach every layer?", gradient_reach).by_hand(
        "Print the gradient norm by layer, first to last: neighbours should differ by less than a factor of 10."
    ),
    "activation_scale": ask(
        "Does the scale of activations hold from layer to layer?",
        change("activation_std", "standard deviation of activations", fall=0.1),
    ).by_hand("Print output.std() of each block at step 0: it should stay between 0.1 and 10 at all depths."),
    "weight_growth": ask(
        "Did the norm of the weights grow?", change("param_norm", "norm of the weights", rise=2.0)
    ).by_hand("Plot the weight norm by layer over all steps; growth without end asks for weight decay."),
    "residual": ask(
        "Are there residual connections and normalisation?",
        setting("normalisation", "norm norm_first pre_norm normalization layer_norm"),
    ).by_hand("Add x + block(norm(x)) around each block and train 200 steps: the first layers must learn faster."),
    "activation_function": ask(
        "Does the activation function pass gradients?",
        setting("the activation function", "activation act hidden_act activation_function nonlinearity"),
    ).by_hand("Replace sigmoid and tanh by ReLU or GELU between layers; compare the gradient of the first layer."),
    "depth": ask(
        "Does a shallower model train?",
        setting("the depth", "depth n_layer n_layers num_layers num_hidden_layers layers"),
    ).by_hand("Train with half the layers: if that works, the depth is what the gradient does not survive."),
    "rank": ask(
        "Did the effective rank of the layer before it fall?", change("effective_rank", "effective rank", fall=0.5)
    ).by_hand("Take the singular values of 1000 outputs: the exponential of their entropy is the effective rank."),
    "entropy": ask(
        "How far did the attention entropy fall?", change("attention_entropy", "attention entropy", fall=0.5)
    ).by_hand("Compute -sum(p log p) of each head over a batch: log(length) is even attention, 0 a single position."),
    "logit_size": ask(
        "How large are the attention logits?", change("attention_max_logit", "largest attention logit", rise=2.0)
    ).by_hand("Normalise queries and keys (QK-norm) in a short run and compare the largest logit."),
    "qk_scale": ask(
        "Are scores divided by the square root of the head's width?",
        setting("scaling of attention scores", "qk_norm qk_layernorm scale logit_cap softcap attn_logit_softcapping"),
    ).by_hand("Read the attention code: scores before softmax at step 0 should have a standard deviation near 1."),
    "mask": ask("Is the mask right, and does every row attend to something?").by_hand(
        "Sum the mask by row: a row of zeros gives NaN or an even row; print one padded sample's mask."
    ),
    "positions": ask(
        "Are positions encoded within the trained length?",
        setting("the length", "max_position_embeddings block_size context_length seq_len max_seq_len max_length"),
    ).by_hand("Compare the longest sequence of the batch with the positions table or the rotary base."),
    "load": ask(
        "How far did the evenness of the experts' load fall?",
        change("router_load_entropy", "entropy of the experts' shares", fall=0.2),
    ).by_hand(
        "Plot the entropy of the experts' shares over the steps; 1 is even, and a fall begins before the collapse."
    ),
    "router_logits": ask(
        "Did router logits grow?", change("router_max_logit", "largest router logit", rise=2.0)
    ).by_hand("Print (logits - logits.mean(-1, keepdim=True)).abs().max() by layer: above 40 a choice is a certainty."),
    "dropped": ask("Are tokens dropped?", change("router_dropped", "share of dropped tokens", rise=2.0)).by_hand(
        "Compare the rows that experts get with tokens * top_k; raise the capacity factor above a few per cent."
    ),
    "balance": ask(
        "Is there a load-balancing loss, and how large is it?",
        setting(
            "the weight of the load-balancing loss",
            "router_aux_loss_coef aux_loss_coef aux_loss_alpha load_balancing balance_weight moe_loss_coeff",
        ),
    ).by_hand("Print it beside the task's loss: it should be 1-10 % of it, and summed over all layers with experts."),
    "capacity": ask(
        "How many experts does a token go to?",
        setting("experts for each token", "num_experts_per_tok top_k moe_top_k capacity_factor expert_capacity"),
    ).by_hand("Train 200 steps with one more expert for each token: if shares even out, the choice was too hard."),
    "unique_ratio": ask(
        "How did the share of unique codes change?", change("sdr_unique_ratio", "share of unique codes", fall=0.5)
    ).by_hand("Compute len(codes.unique(dim=0)) / len(inputs.unique(dim=0)) at the last checkpoints."),
    "duty": ask(
        "Do bits share the work evenly?", change("sdr_duty_std", "standard deviation of duty cycles", rise=2.0)
    ).by_hand(
        "Compute the standard deviation of the duty cycles; add boosting where few bits are on most of the time."
    ),
    "active_bits": ask("How many bits are on?", change("sdr_active_bits", "active bits", fall=0.5)).by_hand(
        "Print codes.sum(-1): a constant of 2 % of the width is usual; 0 or all mean a wrong threshold."
    ),
    "code_inputs": ask(
        "Do the inputs of the encoder differ?", change("sdr_input_ratio", "share of different inputs", fall=0.5)
    ).by_hand("Count unique rows of the encoder's input: equal inputs must give equal codes."),
    "code_loss": ask("Does any part of the loss separate codes?").by_hand(
        "Set the weights of the other parts to 0: the codes must spread; if not, add a contrastive or entropy term."
    ),
    "code_width": ask(
        "Are there enough bits for the number of inputs?", change("sdr_width", "width of the codes", fall=0.5)
    ).by_hand(
        "Compare the number of inputs with binomial(width, active): it should be many orders of magnitude larger."
    ),
    "end": ask("How did the process end?", how_it_ended).by_hand(
        "Read the last lines of its output, `dmesg`, and the scheduler's record of the job."
    ),
    "memory": ask("Did memory grow?", memory).by_hand(
        "Log torch.cuda.memory_allocated() every 100 steps; look for losses that are kept with their graph."
    ),
    "host_memory": ask(
        "Did the memory of the process on the host grow?", change("host_memory", "host memory", rise=1.5)
    ).by_hand(
        "Watch the resident size for 1000 steps; look for lists that keep tensors, and for workers that cache samples."
    ),
    "data_time": ask("Does the training wait for data?", change("data_time", "time for data", rise=2.0)).by_hand(
        "Train on one batch kept in memory: if that is much faster, raise num_workers and set pin_memory=True."
    ),
    "forward_time": ask(
        "Did the forward pass become slower?", change("forward_time", "time for the forward pass", rise=1.5)
    ).by_hand("Run torch.profiler for 10 steps; sort by device time; look for an operation that runs on the CPU."),
    "backward_time": ask(
        "Did the backward pass become slower?", change("backward_time", "time for the backward pass", rise=1.5)
    ).by_hand("Profile it; subnormal numbers and gradients near zero slow CPUs: torch.set_flush_denormal(True)."),
    "optimizer_time": ask(
        "Did the optimizer become slower?", change("optimizer_time", "time for the optimizer", rise=1.5)
    ).by_hand("Use fused=True or foreach=True; check that no parameter was added to the optimizer in each epoch."),
    "overhead": ask(
        "Does the recording itself cost much?", change("overhead_fraction", "share of time for recording", rise=2.0)
    ).by_hand("Train 200 steps with autolog(disable=True), and compare the step time."),
    "compiled": ask(
        "Is the model compiled, and not compiled again and again?",
        setting("compilation", "compiled compile torch_compile"),
    ).by_hand("Set TORCH_LOGS=recompiles; shapes that change in each step need dynamic=True or padding."),
    "matmul": ask(
        "Is TF32 allowed for matrix products?",
        setting("precision of matrix products", "float32_matmul tf32 allow_tf32"),
    ).by_hand("Call torch.set_float32_matmul_precision('high') on Ampere and later, unless fp32 is needed."),
    "threads": ask(
        "Are there enough threads and workers, and not too many?",
        setting("threads and workers", "threads num_workers dataloader_num_workers workers"),
    ).by_hand(
        "Multiply workers by threads: more than the cores slows all; set OMP_NUM_THREADS, try num_workers 4 and 8."
    ),
    "devices": ask(
        "Does every rank train on a device of its own?", setting("devices", "devices world_size device num_gpus n_gpus")
    ).by_hand("Print torch.cuda.current_device() by rank and watch nvidia-smi; compare the step time of all ranks."),
    "synchronisation": ask("Does the script wait for the device in each step?").by_hand(
        "Look for .item(), print of tensors and .cpu() in the loop; torch.cuda.set_sync_debug_mode('warn') names them."
    ),
    "heat": ask("Is the device throttled, or shared?").by_hand(
        "Run nvidia-smi -q -d PERFORMANCE: look for thermal or power slowdown, and for other processes."
    ),
    "accumulation": ask(
        "Could micro-batches be smaller?",
        setting("gradient accumulation", "accumulation gradient_accumulation_steps accumulate_grad_batches"),
    ).by_hand("Halve the micro-batch and double the accumulation: the gradient stays, the activations are halved."),
    "checkpointing": ask(
        "Are activations recomputed instead of kept?",
        setting("activation checkpointing", "gradient_checkpointing activation_checkpointing checkpointing"),
    ).by_hand(
        "Wrap blocks in torch.utils.checkpoint.checkpoint(use_reentrant=False): a third more time, far less memory."
    ),
    "optimizer_memory": ask(
        "How much does the optimizer's state take?", setting("the optimizer", "optimizer parameters_total optim")
    ).by_hand(
        "Adam keeps two numbers a parameter, 8 bytes in fp32; use fewer ranks' copies (FSDP) or an 8-bit optimizer."
    ),
    "graph": ask("Is a graph kept from step to step?").by_hand(
        "Look for total += loss without .item(), and lists of outputs: each keeps the whole graph of its step."
    ),
    "no_grad": ask("Is validation run without gradients?").by_hand(
        "Wrap it in torch.no_grad() or torch.inference_mode(); compare the peak memory of both loops."
    ),
    "fragmentation": ask("Is memory fragmented?").by_hand(
        "Compare memory_reserved with memory_allocated; set PYTORCH_ALLOC_CONF=expandable_segments:True."
    ),
    "lengths": ask(
        "Are there batches of unusual length?", events("unusual batch", "broken_batch", "batch_discarded")
    ).by_hand(
        "Log the largest sequence or image of each batch; cut or bucket by length; warm up with the largest one."
    ),
}
"""By key; those about a kind of finding by its name."""
