"""Colours and fonts of the page's boxes and buttons; those of annotated text are in `page.css`."""

from __future__ import annotations

import gradio as gr

FONTS = (
    "system-ui",
    "-apple-system",
    "Segoe UI",
    "Noto Sans",
    "Noto Sans CJK SC",
    "PingFang SC",
    "Microsoft YaHei",
)
MONO = ("ui-monospace", "Cascadia Mono", "Menlo", "Consolas")
LIGHT = {
    "body_background_fill": "#f5f7f9",
    "body_text_color": "#1b1f24",
    "background_fill_primary": "#ffffff",
    "background_fill_secondary": "#f5f7f9",
    "border_color_primary": "#dde2e9",
    "block_background_fill": "#ffffff",
    "block_border_color": "#dde2e9",
    "block_title_text_color": "#3f4751",
    "block_info_text_color": "#59626e",
    "input_background_fill": "#ffffff",
    "input_border_color": "#d3d9e1",
    "input_border_color_focus": "#0b6e99",
    "button_primary_background_fill": "#0b6e99",
    "button_primary_background_fill_hover": "#095b7f",
    "button_primary_text_color": "#ffffff",
    "button_secondary_background_fill": "#ffffff",
    "button_secondary_background_fill_hover": "#eef1f5",
    "button_secondary_border_color": "#d3d9e1",
    "button_secondary_text_color": "#1b1f24",
    "color_accent": "#0b6e99",
}
DARK = {
    "body_background_fill": "#14171b",
    "body_text_color": "#e8eaed",
    "background_fill_primary": "#1d2127",
    "background_fill_secondary": "#14171b",
    "border_color_primary": "#343a43",
    "block_background_fill": "#1d2127",
    "block_border_color": "#343a43",
    "block_title_text_color": "#c6ccd4",
    "block_info_text_color": "#a3abb7",
    "input_background_fill": "#171a1f",
    "input_border_color": "#3c434d",
    "input_border_color_focus": "#6cc5ee",
    "button_primary_background_fill": "#19779f",
    "button_primary_background_fill_hover": "#2289b4",
    "button_primary_text_color": "#ffffff",
    "button_secondary_background_fill": "#242930",
    "button_secondary_background_fill_hover": "#2d333b",
    "button_secondary_border_color": "#3c434d",
    "button_secondary_text_color": "#e8eaed",
}
SAME = {
    "block_title_text_weight": "550",
    "block_shadow": "none",
    "input_border_width": "1px",
    "input_shadow": "none",
    "button_border_width": "1px",
    "button_medium_padding": "0.5rem 1rem",
    "button_large_padding": "0.55rem 1.1rem",
    "button_large_text_size": "0.98rem",
    "button_large_text_weight": "550",
    "layout_gap": "0.9rem",
}


def theme() -> gr.themes.Base:
    """Calm greys, one blue, fonts of the system: nothing to fetch."""
    base = gr.themes.Base(
        primary_hue=gr.themes.colors.sky,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_lg,
        font=[*map(gr.themes.Font, FONTS), gr.themes.Font("sans-serif")],
        font_mono=[*map(gr.themes.Font, MONO), gr.themes.Font("monospace")],
    )
    return base.set(**SAME, **LIGHT, **{f"{name}_dark": value for name, value in DARK.items()})
