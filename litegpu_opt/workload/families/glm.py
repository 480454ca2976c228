"""GLM-4.5 and its successors: grouped attention, dense layers first, then experts with shared ones.

The output of the attention has no bias, and every router corrects its scores by one parameter for
each expert. Source: huggingface/transformers, models/glm4_moe/modeling_glm4_moe.py.
"""

from ..config_file import ConfigFile
from ..transformer import Layer, Transformer
from .family import (
    EXPERTS,
    GROUPED,
    ROUTING,
    SHAPE,
    Family,
    gated_experts,
    grouped_attention,
    layer_count,
    rms_model,
    some_sparse,
    words,
)


def _read(config: ConfigFile) -> Transformer:
    layers = layer_count(config)
    first = config.count("first_k_dense_replace", least=0, most=layers)
    config.assume("no bias of the attention's output")
    attention = grouped_attention(
        config,
        input_bias=config.flag("attention_bias", default=False),
        head_norms=config.flag("use_qk_norm", default=False),
    )
    config.assume("every router has a correction for each expert")
    experts = gated_experts(
        config,
        width="moe_intermediate_size",
        router_bias=True,
        shared_width=config.count("n_shared_experts", least=0)
        * config.count("moe_intermediate_size"),
    )
    mlps = some_sparse(config, experts, [layer >= first for layer in range(layers)])
    return rms_model(
        config,
        [Layer(attention, mlp) for mlp in mlps],
        predictions=config.count("num_nextn_predict_layers", default=0, least=0, most=layers),
    )


GLM4_MOE = Family(
    model_types=("glm4_moe",),
    read=_read,
    fields=SHAPE
    | GROUPED
    | EXPERTS
    | words(
        "attention_bias first_k_dense_replace moe_intermediate_size n_shared_experts "
        "num_nextn_predict_layers use_qk_norm"
    ),
    harmless=ROUTING
    | words(
        "n_group partial_rotary_factor routed_scaling_factor scoring_func topk_group topk_method"
    ),
)
