"""LoRA adapters on a small BERT with random weights, for data whose samples are tokens, such as AG News.

    strata run --data ag-news --model examples.adapters:bert --algorithm fedper \
        --set algorithm.personal='*.lora_B+classifier'

That is FedSA-LoRA: clients share A and keep B and the classifier. Replace `BertForSequenceClassification(config)` by
`BertForSequenceClassification.from_pretrained(FOLDER, num_labels=classes)` for a base of your own.
"""

from torch import nn

VOCABULARY = 98_635  # of AG News


def bert(shape: tuple[int, ...], classes: int, width: int = 128, layers: int = 2, rank: int = 4) -> nn.Module:
    """A base of 54 MB by default, of which attention is adapted, and a classifier that is trained as well."""
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        intermediate_size=4 * width,
        max_position_embeddings=shape[-1],
        num_labels=classes,
    )
    adapter = LoraConfig(task_type=TaskType.SEQ_CLS, r=rank, target_modules=["query", "value"])
    return get_peft_model(BertForSequenceClassification(config), adapter)
