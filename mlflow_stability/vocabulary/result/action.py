"""What can be done about findings: each action with its sentence, its topic and what it needs."""

from __future__ import annotations

from enum import Enum
from string import Formatter

from mlflow_stability.vocabulary.result.topic import Need, Topic


class Action(Enum):
    """One thing to do about a finding.

    A value is the sentence, and after it the topic, the need, and the sentence for a run that does not show whether it
    has what is needed. `Remedy` fills in what is in braces.

    Example:

        >>> Action.SHUFFLE_DATA.sentence
        'Shuffle the data: DataLoader(..., shuffle=True).'
    """

    LOWER_LEARNING_RATE = "Lower the learning rate{change}.", Topic.LOWER_RATE
    LOWER_RATE_AND_CHECK_SCHEDULE = "Lower the learning rate, and check its schedule.", Topic.LOWER_RATE
    LOWER_RATE_OR_LENGTHEN_WARM_UP = "Lower the learning rate{change}, or lengthen the warm-up.", Topic.LOWER_RATE
    LOWER_RATE_OR_WARM_UP_LONGER = "Lower the learning rate, or warm it up longer.", Topic.LOWER_RATE
    RAISE_LEARNING_RATE = "Raise the learning rate{change}.", Topic.RAISE_RATE
    RAISE_OR_LOWER_LEARNING_RATE = "Raise the learning rate, or lower it by a factor of {factor}.", Topic.RAISE_RATE
    LENGTHEN_WARM_UP = "Lengthen the learning-rate warm-up.", Topic.WARM_UP
    WARM_UP_LEARNING_RATE = "Warm up the learning rate over {range} % of the steps.", Topic.WARM_UP
    WARM_UP_TO_NEW_RATE = "Warm up to the new rate over some hundred steps.", Topic.NEW_RATE
    LOWER_RATE_IF_AGAIN = "If it happens again, lower the learning rate{change}.", Topic.LOWER_RATE
    KEEP_LEARNING_RATE = "Keep the learning rate."
    KEEP_PEAK_RATE = "Keep the peak learning rate."
    CHECK_SCHEDULE = "Check the learning-rate schedule.", Topic.SCHEDULE
    MATCH_SCHEDULE_LENGTH = (
        "Set the length of the learning-rate schedule{of} to the number of optimizer steps.",
        Topic.SCHEDULE,
    )
    STEP_SCHEDULE_PER_EPOCH = ("Step the schedule once an epoch if it counts epochs.", Topic.SCHEDULE)
    CHECK_SCHEDULE_AT_RESUME = (
        "Check the learning-rate schedule, above all at its end and after a resume.",
        Topic.SCHEDULE,
    )
    CHECK_CONFIGURED_RATE = "Check the learning rate in the configuration; for Adam 1e-5 to 1e-3 is usual."
    USE_PRETRAINED_WEIGHTS = "Start from pretrained weights, or try learning rates 10 times higher and lower."

    CLIP_GRADIENTS = "Clip gradients{limit}.", Topic.CLIP_GRADIENTS
    CLIP_GRADIENTS_AGAIN = "Clip gradients{limit} again{until}.", Topic.CLIP_GRADIENTS
    CLIP_BEFORE_STEP = "Clip gradients between backward() and step(), not after step().", Topic.CLIP_GRADIENTS
    CLIP_UPDATES = "Clip the updates, as StableAdamW does.", Topic.CLIP_UPDATES
    CLIP_UPDATES_OR_USE_SPAM = (
        "Clip updates by their RMS, as StableAdamW does, or train with SPAMAdam.",
        Topic.CLIP_UPDATES,
    )
    LOWER_BETA2 = "Lower Adam's beta2 to {range}.", Topic.BETA2
    LOWER_BETA2_OR_CLIP = "Lower beta2 or clip gradients; increase eps.", Topic.BETA2
    RAISE_EPS_OR_RESET_OPTIMIZER = "Raise eps, or reset the optimizer's state."
    ADD_WEIGHT_DECAY = "Add weight decay.", Topic.REGULARISATION
    LOWER_WEIGHT_DECAY = "Lower the weight decay."
    ADAPT_STEP_OF_LAYERS = "Use an optimizer that adapts each layer's step."
    CALL_ZERO_GRAD = "Call optimizer.zero_grad() in every step, or after each accumulation."

    RESTART_BEFORE_STEP = "Restart from a checkpoint before {step}.", Topic.GO_BACK, Need.CHECKPOINT
    ENABLE_ROLLBACK = "Enable rollback=True, or restart from a checkpoint before {step}.", Topic.GO_BACK
    RESTART_FROM_NEWEST = "Restart from the newest checkpoint."
    RESTART_FROM_START = "Restart from the first step."
    CONTINUE = "Continue."
    CONTINUE_AT_NEW_RATE = "Continue if the new learning rate is intended."
    CONTINUE_WHILE_LOSS_FALLS = (
        "Continue while the loss falls; then restart from a checkpoint before {step}, and lower the learning "
        "rate{change}."
    )
    CONTINUE_OR_CHANGE_DEVICE = (
        "Continue if the time left is acceptable; else restart from the newest checkpoint on another device."
    )
    STOP_UNLESS_LOSS_FALLS = (
        "If the loss does not fall within 500 steps, stop: the capacity of the model or the data are exhausted."
    )
    STOP_AT_BEST = "Stop, and keep the checkpoint of the best validation loss{at}."
    RESTART_REGULARISED = "To go on, restart from it with more data, augmentation or weight decay."
    RESTART_FROM_LAST_GOOD = "Restart from the last good checkpoint.", Topic.GO_BACK, Need.CHECKPOINT
    RESTORE_BY_RUN = "Restart from a checkpoint with restore(model, optimizer, run_id=...)."
    RESTORE_ON_EVERY_RANK = "Call mlflow_stability.restore(model, optimizer) at the start of the script, on every rank."
    LOAD_GOOD_CHECKPOINT = "Load the best or the last good checkpoint with restore()."
    LOAD_PARAMETER = "Load a checkpoint from before, or initialise the parameter anew."
    LOAD_MODEL = "Load a checkpoint from before, or initialise the model anew."
    LOAD_BUFFER = "Reset the buffer, or load a checkpoint."
    RESET_RUNNING_STATISTICS = (
        "Call reset_running_stats() on batch-norm layers, or load these buffers from a checkpoint."
    )
    WRITE_CHECKPOINT = "Write a checkpoint now."
    FREE_DISK_SPACE = "Free disk space there, or set another directory."
    SAVE_SHARDS = "Save checkpoints with torch.distributed.checkpoint, from all processes."
    CONSOLIDATE_OPTIMIZER = (
        "Call consolidate_state_dict() of ZeroRedundancyOptimizer on every rank, then save model and optimizer on "
        "rank 0."
    )

    INSPECT_BATCH = "Inspect the batch at {step}{saved}.", Topic.INSPECT_BATCH
    INSPECT_LOSS_AND_BATCH = "Inspect the loss and the batch at {step}{saved}.", Topic.INSPECT_BATCH
    INSPECT_SKIPPED_BATCHES = "Inspect the batches of the skipped steps.", Topic.INSPECT_BATCH
    INSPECT_FIRST_SKIPPED = "Inspect the batch and the loss of the first skipped step.", Topic.INSPECT_BATCH
    OPEN_SAVED_BATCH = "Open the saved batch{saved}.", Topic.SAVED_BATCH
    INSPECT_SAVED_BATCH = "Inspect the saved batch and the code that makes it{saved}.", Topic.SAVED_BATCH
    INSPECT_BATCH_OF_RANK = "Inspect the batch of that rank at that step."
    INSPECT_BROKEN_BATCH = "Inspect the batch whose loss was not finite."
    INSPECT_BATCHES_SINCE_ONSET = "Inspect the batches from the onset on, and the first finding before this one."
    INSPECT_INPUTS = "Inspect the inputs at {step}: empty targets, division by zero, logarithm of zero."
    FIND_COMMON_SAMPLES = "Find the samples that these batches have in common, and check their inputs and targets."
    CHECK_LOSS_TERMS_OF_BATCH = "Run the loss on the batch of this step alone, and look at each of its terms."
    CHECK_LABELS = "Check that labels match inputs and are shuffled."
    CHECK_CLASSES_AND_LABELS = "Check classes and labels, and overfit ten samples on purpose."
    OVERFIT_ONE_BATCH = "Overfit one batch until its loss is near zero; if that fails, the model or the loss is broken."
    CHECK_DATA_LOADER = "Check whether the data loader returns the same batch repeatedly."
    CHECK_DATA_CHANGE = (
        "Check what changed at that step: the data set or its order, preprocessing, labels, a loss term or its weight."
    )
    LOWER_WEIGHT_OF_TERM = "Lower the weight of that term of the loss, or raise it over some hundred steps."
    KEEP_IF_INTENDED = "If it is intended, nothing has to be done."
    CHECK_LOSS_SCALE_OF_DATA = "Check whether the scale of the loss changed, such as that of rewards."
    CHECK_BATCH_AND_TARGETS = "Check the batch and the targets."
    CHECK_BATCH_VALUES = "Check the batch for NaN and huge values."
    CHECK_BATCH_SHAPES = "Check the shapes and types of the batch against the model."
    STANDARDISE_INPUTS = "Scale the inputs once: divide bytes by 255, or standardise each feature."
    INSPECT_INPUT_PATH = "Look for inputs that are multiplied by zero, masked or overwritten before the first layer."
    FIND_WHERE_ROWS_MEET = (
        "Follow the outputs of two rows back to where they become equal: a mean or softmax over the batch, a "
        "normalisation of one value, equal inputs, or dead units."
    )
    MAKE_OPTIMIZER_ONCE = "Make the optimizer once, before the training loop."
    SET_RATE_OF_GROUP = "Give the parameter group a learning rate, or freeze it: requires_grad_(False)."
    SET_BATCH_FIRST = "Set batch_first=True, or transpose the input to (sequence, batch, features)."
    SOFTMAX_OVER_KEYS = "Take the softmax of attention scores over their last dimension, that of the keys."
    TRANSPOSE = "Exchange dimensions with transpose() or permute(), and use view() only to split or merge neighbours."
    CHECK_MASKING = "Check how targets are masked and padded; pack short sequences together."
    MAP_LABELS = "Map the labels to 0 and 1."
    CHECK_TARGETS = "Check that the targets belong to the inputs."
    CHECK_LEAKED_TARGETS = "If the model is untrained, check whether the inputs contain the targets."
    USE_BINARY_CROSS_ENTROPY = (
        "Use binary_cross_entropy_with_logits where an example may have several classes; let probabilities add up to 1."
    )
    IGNORE_PADDING = "Leave padding out of the loss: cross_entropy(..., ignore_index=padding_idx)."
    SHIFT_TARGETS = "Shift the targets by one position: compare logits[:, :-1] with tokens[:, 1:]."
    MASK_FOLLOWING_TOKENS = (
        "Mask the positions that follow: is_causal=True in scaled_dot_product_attention, or a causal attn_mask."
    )
    STANDARDISE_TARGETS = "Standardise the targets, or start the last bias at their mean."
    LEAVE_OUT_BATCH = "Leave out the batch of {step}, and repair the data."
    LEAVE_OUT_BATCHES = "Leave out the batches around {step}."
    LEAVE_OUT_BATCH_IF_AGAIN = "If it happens again, leave out the batch of {step} and lower the learning rate{change}."
    FIX_DATA = "Fix the data."
    USE_LARGER_BATCHES = "Use larger batches.", Topic.LARGER_BATCHES
    USE_LARGER_BATCHES_OR_GROUP_NORM = (
        "Use larger batches, or GroupNorm in place of batch normalisation.",
        Topic.LARGER_BATCHES,
    )

    TRAIN_IN_BF16 = (
        "Train in bf16 instead of fp16.",
        Topic.HALF_PRECISION,
        Need.FP16,
        "If it trains in fp16: train in bf16 instead.",
    )
    TRAIN_IN_BF16_OR_SCALE = (
        "Train in bf16 instead of fp16, or start with a loss scale of 1024.",
        Topic.HALF_PRECISION,
        Need.FP16,
        "If it trains in fp16: train in bf16 instead, or start with a loss scale of 1024.",
    )
    TRAIN_IN_BF16_OR_SINGLE = (
        "Train in bf16 instead of fp16, or compute values above 65504 in float32.",
        Topic.HALF_PRECISION,
        Need.FP16,
        "If it trains in fp16: train in bf16 instead, or compute values above 65504 in float32.",
    )
    TRAIN_IN_BF16_OR_CONSERVATIVE_SCALER = (
        "With fp16: train in bf16, or start with conservative_grad_scaler().",
        None,
        Need.FP16,
        "With fp16: train in bf16, or start with conservative_grad_scaler().",
    )
    START_LOSS_SCALE = (
        "Start with a loss scale of 1024 that grows by 1.5 every 200 steps.",
        Topic.HALF_PRECISION,
        Need.FP16,
    )
    LOWER_LOSS_SCALE = "Lower the loss scale.", Topic.LOSS_SCALE, Need.FP16
    LOWER_SCALE_OF_SCALER = (
        "With a loss scaler: lower the loss scale.",
        Topic.LOSS_SCALE,
        Need.FP16,
        "With a loss scaler: lower the loss scale.",
    )
    LOWER_LOSS_SCALE_OR_BF16 = (
        "Lower the loss scale, or train in bf16, where the backward pass uses half precision.",
        Topic.LOSS_SCALE,
        Need.FP16,
        "Lower the loss scale, or train in bf16, where the backward pass uses half precision.",
    )
    CHECK_WEIGHTS_FOR_NAN = (
        "Look for NaN in weights and gradients: half precision and masked losses turn them into zero.",
        None,
        Need.FP16,
    )
    KEEP_WEIGHTS_IN_FP32 = "Keep the weights in fp32."
    KEEP_FP32_WITH_AUTOCAST = "Keep parameters in float32 and use autocast."
    COMPUTE_LOSS_IN_FLOAT32 = "Compute the loss in float32."

    FIND_FIRST_NAN_MODULE = "Find the first module whose output is NaN."
    FIND_UNBOUNDED_OPERATION = "Find an unbounded exponential, division or logarithm in the first infinite module."
    FIND_OVERFLOWING_MODULE = "Find the module whose output overflows."
    FIND_FIRST_NON_FINITE = "Find what became non-finite first."
    LOOK_FOR_MASKED_ROW = "Look for a softmax over a fully masked row, a logarithm of zero or a division by zero."
    COMPUTE_ONLY_WHERE_DEFINED = "Compute it only where it is defined, instead of masking its result."
    KEEP_INPUTS_IN_RANGE = "Keep the inputs of this operation within its range.", Topic.VALID_RANGE
    CLAMP_INPUTS = (
        "Keep the inputs of this operation within its range: clamp them, or add a small number.",
        Topic.VALID_RANGE,
    )
    KEEP_INPUTS_VALID = "Keep the inputs of this operation in its valid range: clamp them, or add a small constant."
    KEEP_INPUTS_FROM_SLOPE = (
        "Keep the inputs of this operation away from points of infinite slope: add a small constant."
    )
    KEEP_INPUTS_FROM_ZERO = "Keep the inputs of roots, divisions and norms away from zero: add a small number."
    CLAMP_BELOW_RANGE = "Clamp the input to slightly less than the range in which this operation is defined."
    KEEP_ONE_KEY = "Do not mask a whole row: leave each query at least one key."
    MASK_WITH_FINITE_VALUE = (
        "Mask with torch.finfo(dtype).min instead of -inf, and leave fully masked rows out of the loss."
    )
    KEEP_LOGARITHM_ABOVE_ZERO = "Keep the input of the logarithm above zero: add a small constant."
    USE_LOG_SOFTMAX = "Use log_softmax or logsigmoid of the logits, or a loss function that takes logits."
    KEEP_ROOT_ABOVE_ZERO = (
        "Keep the input of the root above zero: clamp it, or add a small constant; its slope at zero is infinite."
    )
    KEEP_DIVISOR_FROM_ZERO = "Keep the divisor away from zero: add a small constant, or clamp it."
    KEEP_BASE_ABOVE_ZERO = (
        "Keep the base of a negative or fractional power above zero: clamp it, or add a small constant."
    )
    SUBTRACT_MAXIMUM = "Subtract the maximum before the exponential, or use softmax or torch.logsumexp."
    SKIP_EMPTY_BATCHES = "Skip batches without targets: the mean over none is 0/0."
    RAISE_EPS_OF_NORM = "Set eps of the normalisation above zero."
    COMPUTE_SPREAD_OF_SEVERAL = "Compute the spread over more than one value, and add a small constant to it."
    SCALE_DOWN_AND_FIND_SOURCE = (
        "Normalise or scale down the inputs of this operation, and find what made them so large."
    )
    SCALE_DOWN_OR_FLOAT32 = "Normalise or scale down the inputs of this operation, or compute it in float32."
    CHECK_LOSS_FUNCTION = "Check the labels, and logarithms, roots and divisions in the loss function."
    CHECK_HOOK_OF_OUTPUT = "Check by what the hook on the model's output multiplies the gradient, and to which dtype."
    CHECK_OPERATIONS = "Check exponentials, logarithms, roots and divisions in model and loss function."
    FIX_OPERATION = "Fix the operation."
    CHECK_INFINITE_SLOPES = "Check operations with infinite slope at 0: sqrt, log, norm, division."
    CHECK_FIRST_TARGETS = "Check that the loss of the first batch has targets: the mean of an empty selection is NaN."
    CHECK_FIRST_BATCH = "Check that the first batch has targets, and is finite."
    CHECK_INPUTS_AND_WEIGHTS = "Check that inputs and initial weights are finite and of usual size."
    CHECK_INITIAL_WEIGHTS = "Check the initial weights."
    INSPECT_TENSOR_OF_SCRIPT = "Inspect the tensor that the script uses there."
    CHECK_TENSOR_OF_SCRIPT = "Check the tensor that the script keeps there."
    CHECK_WRITER_OF_WEIGHT = "Check what else writes to this weight, and the checkpoint it was loaded from."
    CHECK_WRITER_OF_BUFFER = "Check what writes to this buffer."
    CHECK_WRITER_OF_WEIGHTS = "Check what writes to the weights besides the optimizer, and the device memory."
    CHECK_COPIES_TO_WEIGHTS = "Check what writes to the weights there: load_state_dict(), copy_(), averages (EMA, SWA)."
    RESTORE_TRAINING_WEIGHTS = (
        "Restore the training weights after each evaluation: ema.restore(), or load the state from before it."
    )

    CHECK_INITIALISATION = "Check the initialisation.", Topic.INITIALISATION
    CHECK_INITIALISATION_AND_BIASES = "Check the initialisation, and biases that drift.", Topic.INITIALISATION
    CHECK_ACTIVE_BITS = "Check the number of active bits and the initialisation."
    INITIALISE_BY_INPUTS = (
        "Initialise with a standard deviation of 1/sqrt(inputs), as torch.nn.init.xavier_normal_ does."
    )
    INITIALISE_RANDOMLY = "Initialise the matrix randomly."
    INITIALISE_OR_KEEP_ZERO = (
        "Keep it where a branch or an adapter has to begin as nothing; elsewhere, initialise the matrix randomly."
    )
    SCALE_DOWN_LAST_LAYER = "Scale down the initial weights of the last layer."
    SCALE_DOWN_WEIGHTS_OR_TARGETS = "Lower the scale of the initial weights or of the targets."
    CHECK_SCALE_BEFORE = "Check the scale of the weights and inputs before it."
    ADD_RESIDUALS_OR_NORMALISE = "Add residual connections, or normalise before each block.", Topic.BLOCKS
    NORMALISE_OR_ADD_RESIDUALS = "Normalise before each block, or add residual connections.", Topic.BLOCKS
    NORMALISE_BEFORE_ACTIVATION = "Normalise before the activation."
    NORMALISE_QUERIES_AND_KEYS = "Normalise queries and keys (QK-norm).", Topic.QUERY_KEY_NORM
    NORMALISE_OR_CLIP_QUERIES_AND_KEYS = "Normalise queries and keys, or clip them.", Topic.QUERY_KEY_NORM
    CLIP_OR_DECAY_QUERIES_AND_KEYS = "Clip or decay the weights of queries and keys.", Topic.QUERY_KEY_CLIP
    CLIP_QUERIES_AND_KEYS = (
        "Clip the weights of queries and keys when logits are too large (QK-clip).",
        Topic.QUERY_KEY_CLIP,
    )
    SCALE_ATTENTION_LOGITS = "Scale attention logits by 1/sqrt(head dimension)."
    USE_OTHER_RELU = "Use LeakyReLU or GELU, or normalise before the ReLU."
    USE_RELU = "Use ReLU or GELU instead of sigmoid or tanh."
    USE_LEAKY_ACTIVATION = "Use an activation with a gradient everywhere, such as LeakyReLU or GELU."
    LOOK_FOR_SATURATED_UNITS = "Look for saturated or dead units."
    LOOK_FOR_INACTIVE_UNITS = "Look for units that are never active."
    LOOK_FOR_GROWING_LAYERS = "Look for layers that grow without bound."
    LOOK_FOR_FROZEN_PARAMETERS = "Look for frozen parameters.", Topic.FROZEN_PARAMETERS
    LOOK_FOR_FROZEN_AND_DEAD = "Look for frozen parameters and dead units.", Topic.FROZEN_PARAMETERS
    LOOK_FOR_DETACH = "Look for a detach, a no_grad or frozen parameters.", Topic.FROZEN_PARAMETERS
    CHECK_FROZEN_PARAMETERS = (
        "Check whether these parameters should be frozen: requires_grad, and what the optimizer was given."
    )
    CHECK_TRAINED_PARAMETERS = "Check that the right parameters are trained."
    CHECK_PATH_TO_LOSS = "Check that the layer's output reaches the loss."
    CHECK_ZEROS_BEHIND = "Check for weights of zero, dead ReLUs and detach() behind it."
    CHECK_OUTPUT_DEPENDS_ON_INPUT = "Check that the output of the model depends on its input."
    CHECK_CONSTANT_OUTPUT = "Check weight decay, dead units and collapsed representations."
    COMPARE_OUTPUTS = "Compare the outputs of the model for two batches."
    COMPARE_PREDICTIONS = "Compare the predictions of the model with the targets."
    INSPECT_OUTPUTS_AND_LABELS = (
        "Inspect the outputs and labels of one batch: a real loss does not repeat to the last digit."
    )
    INSPECT_NORM_AND_UPDATE = "Inspect the gradient norm and the update at {step}."
    INSPECT_LAYER = "Inspect the weights and the inputs of this layer."
    INSPECT_MODULE = "Inspect the input and the weights of {module}."
    CHECK_TERMS_AGAINST_COLLAPSE = (
        "Check the loss terms that keep representations apart, stop-gradients and normalisation."
    )
    CHECK_LOSS_OF_CONSTANT = "Check the loss: a constant output may minimise it."
    ADD_BALANCING_LOSS = "Add a load-balancing loss, or raise its weight."
    ADD_WEIGHTED_BALANCING_LOSS = "Add a load-balancing loss of weight 0.01 to 0.1, or raise its weight 10 times."
    ADD_ROUTER_Z_LOSS = "Add a router z-loss."
    ADD_ROUTER_NOISE = "Add noise to the router logits early in training."
    COMPUTE_ROUTER_IN_SINGLE = "Compute the router in single precision."
    RESTART_DEAD_EXPERTS = "Start dead experts anew from a copy of one in use."
    RAISE_TEMPERATURE = "Raise the temperature{change}.", Topic.TEMPERATURE, Need.TEMPERATURE
    BOUND_TEMPERATURE = "Bound the temperature."
    CHECK_TEMPERATURE_SCHEDULE = "Check its schedule, or its learning rate.", Topic.SCHEDULE
    SEPARATE_TOKENS = "Add a loss that separates tokens."
    SEPARATE_CODES = "Add a loss that separates codes."
    USE_MORE_BITS = "Use more bits."
    BOOST_DUTY_CYCLES = "Regularise the duty cycles (boosting)."
    READ_FINDINGS_OF_MODULE = "Read the findings of the same module, which say when it started."

    ADD_REGULARISATION = "Add dropout or weight decay, or use a smaller model.", Topic.REGULARISATION
    USE_MORE_DATA = "Use more data, or augment it."
    KEEP_BEST_WEIGHTS = "Keep the weights of the best validation loss, and stop there."
    KEEP_BEST_POLICY = "Keep the policy of the best return."
    RAISE_ENTROPY_BONUS = "Raise the entropy bonus."
    JUDGE_BY_GOAL = "Judge this training by what it is to achieve, such as a return or a validation score."
    RELAX_STOP_CONDITION = "Relax the condition if the training was healthy."
    WATCH_LOSS = "Watch the loss for the next 1000 steps."
    FIX_CAUSE_OF_FIRST_FINDING = "Fix the cause: inspect the first finding before this rollback.", Topic.FIX_CAUSE
    FIX_CAUSE = "Fix the cause.", Topic.FIX_CAUSE

    CALL_TRAIN = "Call model.train() after each validation, before the next training step."
    CALL_GC_FREEZE_LATER = "Call `gc.freeze()` after the first step of the training."
    PASS_LOSS = (
        "Pass the loss yourself: `with mlflow_stability.attach(model, optimizer) as session: session.step(loss)`."
    )
    NO_ACTION_FOR_UNMEASURED = "No action needed: losses, gradients, weights and updates are recorded as usual."
    NO_ACTION_FOR_SHARDS = "No action needed: these are measured only where one process has all weights."
    UNDO_CHANGE = "Undo the change."
    CHECK_INTENTION = "Check whether this is intended."
    CHECK_INTENDED_CHANGE = "Check whether the change is intended."
    COMPARE_WITH_CHANGE = "Compare the curves from this step on with the change."
    COMPARE_WITHOUT_OPTION = "Compare the loss with a run without the option."
    COMPARE_RESUMED_STATE = "Compare learning rate, optimizer state and data before and after the resume."
    BUILD_MODELS_ONCE = "Build models and optimizers once, with the same ones in all processes."
    ADD_TO_OPTIMIZER = "Add these parameters to an optimizer, or set their requires_grad to False."
    STEP_OPTIMIZER = "Call step() of this optimizer, too, if it does not begin later on purpose."
    ADD_TO_ONE_OPTIMIZER = "Add each parameter to one optimizer only."
    USE_OR_REMOVE_PARAMETERS = "Use it in forward(), remove it, or set requires_grad to False."
    UNFREEZE_PARAMETERS = "Set requires_grad to True for what has to learn."
    CREATE_OPTIMIZER_LATER = "Create the optimizer after the model has its final parameters, from model.parameters()."
    SET_EPS_OF_NORM = "Use an epsilon of 1e-5 or 1e-6."
    MATCH_SHAPES = "Give prediction and target the same shape: squeeze(1) or unsqueeze(1) one of them."
    REGISTER_MODULES = "Use nn.ModuleList, nn.ModuleDict or nn.Parameter, and make the optimizer after that."
    RAISE_CLIPPING_THRESHOLD = "Raise max_norm to the usual gradient norm before clipping, or more."
    SHUFFLE_DATA = "Shuffle the data: DataLoader(..., shuffle=True)."
    USE_CROSS_ENTROPY = (
        "Use cross_entropy on the logits; nll_loss needs log_softmax over the classes (dim=1) before it."
    )
    TAKE_LOG_SOFTMAX = "Apply log_softmax over the classes to the input of ctc_loss or kl_div: it is a log-probability."
    EXCHANGE_KL_ARGUMENTS = (
        "Call kl_div(log-probabilities of the model, probabilities of the target); log_target=True for a logarithm."
    )
    MAKE_LAYERS_ONCE = "Make layers in __init__, not in forward()."
    RENAME_STATE = "Rename the entries of the state dict, and load it with strict=True."
    ROUND_AFTER_LOSS = "Compute the loss before rounding; round for the accuracy alone."
    PASS_TRAINING = "Pass training=self.training to the function, or use nn.Dropout."
    COPY_STATE = "Keep copy.deepcopy(model.state_dict()), or load the state dict of the other model."
    FREEZE_PARAMETERS = "Freeze with module.requires_grad_(False), before the optimizer is made."
    SCHEDULE_USED_OPTIMIZER = "Make the schedule after the optimizer that takes the steps, and of that one."
    UNSCALE_BEFORE_CLIPPING = "Call scaler.unscale_(optimizer) before clipping.", Topic.CLIP_GRADIENTS
    USE_SIGMOID = "For a single output take the sigmoid, or binary_cross_entropy_with_logits."
    CHECK_SIGN_OF_LOSS = (
        "Check the sign of the loss and of each of its terms; nll_loss takes log-probabilities, cross_entropy logits."
    )
    REMOVE_ACTIVATION_BEFORE_LOSS = (
        "Remove the activation between the model's output and the loss function; nll_loss takes log_softmax there."
    )
    MAKE_OPTIMIZER_OF_MODEL = "Make the optimizer after the model, from the parameters of the model that is trained."
    CALL_ZERO_GRAD_BEFORE_BACKWARD = "Call optimizer.zero_grad() before backward(), not between backward() and step()."
    CLEAR_GRADIENTS_ONCE = "Call optimizer.zero_grad() right after optimizer.step(), not before each micro-batch."
    LOWER_DROPOUT = "Use 1 - p for the dropout: 0.1 to 0.5 is usual."
    DIVIDE_LOSS = "Divide the loss by the number of micro-batches before backward()."
    AVERAGE_LOSS = 'Average the loss, reduction="mean", or divide the learning rate by the number of values.'
    CALL_BACKWARD_ONCE = "Call backward() once on each loss; divide the learning rate if the sum is meant."
    USE_ADAMW = "Use AdamW with a weight decay of 0.01 to 0.1, or lower that of Adam to 1e-4 or less."
    SCALE_TARGETS_TO_ACTIVATION = "Scale the targets to the range of the last activation, or leave that activation out."
    INITIALISE_AT_RANDOM = "Initialise weights at random: nn.init.kaiming_normal_ or the defaults of PyTorch."
    TIE_WEIGHTS = "Tie weights: lm_head.weight = embedding.weight, after everything that replaces parameters."
    LOWER_MOMENTUM = "Lower the momentum of SGD: 0.9 is usual."
    LOWER_EPS_OF_ADAM = "Lower eps of the optimizer: 1e-8 is usual."
    CHECK_SCALE_OF_LOSS = "Check what the loss is divided and multiplied by."
    USE_GRAD_SCALER = (
        "Keep weights in float32 and use torch.autocast with torch.amp.GradScaler, which refuses fp16 gradients; or "
        "train in bf16."
    )
    KEEP_WEIGHTS_IN_FLOAT32 = (
        "Keep weights in float32 and use torch.autocast, or an optimizer with stochastic rounding or master weights."
    )
    SET_EPS_OF_OPTIMIZER = "Set eps of {module} to 1e-4."
    SWAP_BETAS = "Swap betas to {pair}."
    SEARCH_ALONG_LINE = (
        'Create LBFGS with line_search_fn="strong_wolfe", and use one batch for all evaluations of a step.'
    )

    USE_ACTIVATION_CHECKPOINTING = "Use activation checkpointing.", Topic.ACTIVATION_CHECKPOINTING
    USE_CHECKPOINTING_OR_SHORTER = (
        "Use activation checkpointing, or shorter sequences.",
        Topic.ACTIVATION_CHECKPOINTING,
    )
    ACCUMULATE_GRADIENTS = "Use a smaller batch and accumulate gradients."
    HALVE_MICRO_BATCH = "Halve the micro-batch, and double the gradient accumulation."
    SET_EXPANDABLE_SEGMENTS = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    LOOK_FOR_KEPT_TENSORS = "Look for tensors that are kept from step to step."
    ADD_WORKERS = "Add data-loader workers."
    COMPILE_AND_FUSE = "Use torch.compile and a fused optimizer."
    PROFILE_DATA_LOADER = "Profile the data loader.", Topic.DATA_LOADER
    PROFILE_DATA_LOADER_OF_RANK = "Profile the data loader of that rank.", Topic.DATA_LOADER
    CHECK_CLOCK = "Check the device clock and temperature.", Topic.DEVICE_CLOCK
    CHECK_CLOCK_OF_RANK = "Check the clock and temperature of its device.", Topic.DEVICE_CLOCK
    CHECK_NETWORK = "Check the network."
    CHECK_DISK = "Check the disk and the network file system."
    LOOK_FOR_OTHER_PROCESSES = "Look for other processes on the machine."
    LOOK_FOR_OTHER_PROCESSES_OF_RANK = "Look for other processes on its host."
    LOOK_FOR_WORK_OF_RANK = "Look for checkpoints, evaluation or logging on that rank."
    TEST_DEVICE = "Test the device, and run the same step on another device."
    TEST_DEVICE_IF_AGAIN = "Test the device if it happens again."
    CHECK_HOST_OF_RANK = "Check that host for hardware errors."
    FIND_WHERE_IT_WAITS = "Find where it waits: py-spy dump --pid PID."
    CHECK_FOR_DEAD_WORKER = "Check for a dead rank or a dead data-loader worker."
    READ_TRACEBACK = "Read the last line of the traceback."
    READ_LOG_OF_RANK = "Read the log of that rank."
    CHECK_TIME_LIMIT = "Check the job's time limit and the scheduler's log."
    CHECK_KERNEL_LOG = "Check the kernel log for the out-of-memory killer.", Topic.KERNEL_LOG
    CHECK_KERNEL_LOG_OF_RANK = "Check the kernel log of that host for the out-of-memory killer.", Topic.KERNEL_LOG

    IN_WORDS = "{text}"
    """In words of its own: of a detector that is not part of this package, or of a run that was recorded before."""

    def __init__(
        self, sentence: str, topic: Topic | None = None, need: Need | None = None, if_unknown: str = ""
    ) -> None:
        self.sentence = sentence  # with placeholders for what a `Remedy` knows
        self.parts = frozenset(part for _, part, _, _ in Formatter().parse(sentence) if part)
        """The placeholders of the sentence."""
        self.topic = topic
        self.need = need  # without it the action makes no sense
        self._if_unknown = if_unknown

    @property
    def sentence_if_unknown(self) -> str:
        """The sentence for a run that does not show whether it has what is needed."""
        if self.need is Need.CHECKPOINT:
            return f"{self.sentence.removesuffix('.')}, if there is one."
        if self.need is Need.FP16:
            return self._if_unknown or f"If it trains in fp16: {self.sentence[0].lower()}{self.sentence[1:]}"
        return self.sentence

    def __repr__(self) -> str:
        return f"Action.{self.name}"

    @property
    def looks_for_origin(self) -> bool:
        """Whether it is for finding where the first non-finite value comes from, which may be known."""
        return self in _LOOK_FOR_ORIGIN

    @property
    def contradicts(self) -> frozenset[Topic]:
        """The topics whose actions make worse what this one helps against."""
        if self.topic is None or self is Action.RAISE_OR_LOWER_LEARNING_RATE:
            return frozenset()
        return self.topic.contradicts


_LOOK_FOR_ORIGIN = frozenset(
    {
        Action.FIND_FIRST_NAN_MODULE,
        Action.INSPECT_INPUTS,
        Action.FIND_UNBOUNDED_OPERATION,
        Action.LOOK_FOR_MASKED_ROW,
        Action.COMPUTE_ONLY_WHERE_DEFINED,
    }
)
