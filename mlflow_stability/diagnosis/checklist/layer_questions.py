"""Questions about layers: gradients, weights, activations, attention, routers and sparse codes."""

from __future__ import annotations

from mlflow_stability.diagnosis.checklist.answers import by_hand, change, flow, found, setting
from mlflow_stability.diagnosis.checklist.question import Question

QUESTIONS: dict[str, Question] = {
    "explosion": Question(
        "Did the whole gradient explode?",
        "Log the norm before clipping at each step; find the first step above 10 times its median.",
        found("gradient_explosion"),
    ),
    "layer_explosion": Question(
        "In which layer did the gradient explode first?",
        "Print the norm of each parameter's gradient at the last steps before it; look at the earliest jump.",
        found("layer_explosion"),
    ),
    "flow": Question(
        "Does the gradient reach every layer?",
        "Print the gradient norm by layer, first to last: neighbours should differ by less than a factor of 10.",
        flow,
    ),
    "vanished": Question(
        "Has the gradient vanished?",
        "Divide the first layer's gradient norm by the last layer's: below 0.01 the first layers barely learn.",
        found("gradient_vanishing"),
    ),
    "imbalance": Question(
        "Do some layers get far larger gradients than others?",
        "Divide the largest gradient norm of a layer by the smallest: above 1000 one learning rate does not suit.",
        found("gradient_imbalance"),
    ),
    "dead_layer": Question(
        "Is any layer without a gradient?",
        "After backward, list parameters whose grad is None or all zero; look for detach and no_grad.",
        found("dead_layer"),
    ),
    "dead_units": Question(
        "Are units dead?",
        "Count units whose output is 0 for a whole batch; more than half needs another activation or a lower rate.",
        found("dead_units"),
    ),
    "saturated": Question(
        "Are activations saturated?",
        "Print the share of sigmoid or tanh outputs within 1 % of their limits; above half they pass no gradient.",
        found("saturated_activation"),
    ),
    "activation_scale": Question(
        "Does the scale of activations hold from layer to layer?",
        "Print output.std() of each block at step 0: it should stay between 0.1 and 10 at all depths.",
        change("activation_std", "standard deviation of activations", fall=0.1),
    ),
    "weights": Question(
        "Did the weights jump?",
        "Compare the norm of each parameter with that of the last checkpoint; a factor of 2 is not training.",
        found("weight_spike"),
    ),
    "weight_growth": Question(
        "Did the norm of the weights grow?",
        "Plot the weight norm by layer over all steps; growth without end asks for weight decay.",
        change("param_norm", "norm of the weights", rise=2.0),
    ),
    "initialisation": Question(
        "Is the initialisation right?",
        "Compare the standard deviation of each weight at step 0 with sqrt(2 / fan_in), or with 0.02 in transformers.",
        found("weight_imbalance"),
    ),
    "residual": Question(
        "Are there residual connections and normalisation?",
        "Add x + block(norm(x)) around each block and train 200 steps: the first layers must learn faster.",
        setting("norm|norm_first|pre_norm|normalization|layer_norm", "normalisation"),
    ),
    "activation_function": Question(
        "Does the activation function pass gradients?",
        "Replace sigmoid and tanh by ReLU or GELU between layers; compare the gradient of the first layer.",
        setting("activation|act|hidden_act|activation_function|nonlinearity", "the activation function"),
    ),
    "depth": Question(
        "Does a shallower model train?",
        "Train with half the layers: if that works, the depth is what the gradient does not survive.",
        setting("depth|n_layers?|num_layers|num_hidden_layers|layers", "the depth"),
    ),
    "collapse": Question(
        "Have representations collapsed?",
        "Compute the mean cosine between outputs of different samples: near 1 all of them look alike.",
        found("representation_collapse"),
    ),
    "rank": Question(
        "Did the effective rank of the layer before it fall?",
        "Take the singular values of 1000 outputs: the exponential of their entropy is the effective rank.",
        change("effective_rank", "effective rank", fall=0.5),
    ),
    "attention": Question(
        "Has the attention of a layer collapsed?",
        "Draw the attention maps of one batch, all heads: look for single columns or a bare diagonal.",
        found("attention_collapse"),
    ),
    "entropy": Question(
        "How far did the attention entropy fall?",
        "Compute -sum(p log p) of each head over a batch: log(length) is even attention, 0 a single position.",
        change("attention_entropy", "attention entropy", fall=0.5),
    ),
    "logits": Question(
        "Did attention logits grow?",
        "Print (q @ k.T / sqrt(d)).abs().max() by layer: above 50 the softmax passes no gradient.",
        found("attention_logit_growth"),
    ),
    "logit_size": Question(
        "How large are the attention logits?",
        "Normalise queries and keys (QK-norm) in a short run and compare the largest logit.",
        change("attention_max_logit", "largest attention logit", rise=2.0),
    ),
    "qk_scale": Question(
        "Are scores divided by the square root of the head's width?",
        "Read the attention code: scores before softmax at step 0 should have a standard deviation near 1.",
        setting("qk_norm|qk_layernorm|scale|logit_cap|softcap|attn_logit_softcapping", "scaling of attention scores"),
    ),
    "mask": Question(
        "Is the mask right, and does every row attend to something?",
        "Sum the mask by row: a row of zeros gives NaN or an even row; print one padded sample's mask.",
        by_hand,
    ),
    "positions": Question(
        "Are positions encoded within the trained length?",
        "Compare the longest sequence of the batch with the positions table or the rotary base.",
        setting("max_position_embeddings|block_size|context_length|seq_len|max_seq_len|max_length", "the length"),
    ),
    "router": Question(
        "Has a router collapsed?",
        "Count the tokens of each expert over a batch: an even share is 1 / experts; look for shares above 50 %.",
        found("router_collapse"),
    ),
    "experts": Question(
        "Do some experts get no tokens?",
        "Sum the counts of 100 batches by expert: below 2 % of an even share an expert is dead.",
        found("dead_expert"),
    ),
    "load": Question(
        "How far did the evenness of the experts' load fall?",
        "Plot the entropy of the experts' shares over the steps; 1 is even, and a fall begins before the collapse.",
        change("router_load_entropy", "entropy of the experts' shares", fall=0.2),
    ),
    "router_logits": Question(
        "Did router logits grow?",
        "Print (logits - logits.mean(-1, keepdim=True)).abs().max() by layer: above 40 a choice is a certainty.",
        change("router_max_logit", "largest router logit", rise=2.0),
    ),
    "dropped": Question(
        "Are tokens dropped?",
        "Compare the rows that experts get with tokens * top_k; raise the capacity factor above a few per cent.",
        change("router_dropped", "share of dropped tokens", rise=2.0),
    ),
    "balance": Question(
        "Is there a load-balancing loss, and how large is it?",
        "Print it beside the task's loss: it should be 1-10 % of it, and summed over all layers with experts.",
        setting(
            "router_aux_loss_coef|aux_loss_coef|aux_loss_alpha|load_balancing|balance_weight|moe_loss_coeff",
            "the weight of the load-balancing loss",
        ),
    ),
    "capacity": Question(
        "How many experts does a token go to?",
        "Train 200 steps with one more expert for each token: if shares even out, the choice was too hard.",
        setting("num_experts_per_tok|top_k|moe_top_k|capacity_factor|expert_capacity", "experts for each token"),
    ),
    "codes": Question(
        "Are the codes of different inputs different?",
        "Encode 1000 different inputs: count unique codes; below 30 % of the inputs is a collapse.",
        found("sdr_collapse"),
    ),
    "code_diversity": Question(
        "Is the diversity of the codes falling?",
        "Plot unique codes over inputs for the last 10 measurements; a steady fall ends in a collapse.",
        found("sdr_low_diversity"),
    ),
    "unique_ratio": Question(
        "How did the share of unique codes change?",
        "Compute len(codes.unique(dim=0)) / len(inputs.unique(dim=0)) at the last checkpoints.",
        change("sdr_unique_ratio", "share of unique codes", fall=0.5),
    ),
    "bit_usage": Question(
        "Is every bit of the codes used?",
        "Count how often each bit is on over 1000 inputs; bits that are never or always on carry no information.",
        found("sdr_bit_usage"),
    ),
    "duty": Question(
        "Do bits share the work evenly?",
        "Compute the standard deviation of the duty cycles; add boosting where few bits are on most of the time.",
        change("sdr_duty_std", "standard deviation of duty cycles", rise=2.0),
    ),
    "active_bits": Question(
        "How many bits are on?",
        "Print codes.sum(-1): a constant of 2 % of the width is usual; 0 or all mean a wrong threshold.",
        change("sdr_active_bits", "active bits", fall=0.5),
    ),
    "temperature": Question(
        "Is the temperature of the codes in range?",
        "Print the temperature with the schedule; below 0.1 a relaxed top-k passes almost no gradient.",
        found("sdr_temperature"),
    ),
    "code_inputs": Question(
        "Do the inputs of the encoder differ?",
        "Count unique rows of the encoder's input: equal inputs must give equal codes.",
        change("sdr_input_ratio", "share of different inputs", fall=0.5),
    ),
    "code_loss": Question(
        "Does any part of the loss separate codes?",
        "Set the weights of the other parts to 0: the codes must spread; if not, add a contrastive or entropy term.",
        by_hand,
    ),
    "code_width": Question(
        "Are there enough bits for the number of inputs?",
        "Compare the number of inputs with binomial(width, active): it should be many orders of magnitude larger.",
        change("sdr_width", "width of the codes", fall=0.5),
    ),
}
"""By key."""
