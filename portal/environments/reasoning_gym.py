"""Names of reasoning-gym's tasks, by kind: the package takes seconds to import, so the portal only knows the names."""

from __future__ import annotations

from difflib import get_close_matches

TASKS: dict[str, str] = {
    "algebra": "complex_arithmetic intermediate_integration polynomial_equations polynomial_multiplication "
    "simple_equations simple_integration",
    "algorithms": "ab base_conversion binary_alternation binary_matrix caesar_cipher count_primes cryptarithm "
    "game_of_life game_of_life_halting graph_color group_anagrams isomorphic_strings jugs letter_counting "
    "letter_jumble manipulate_matrix number_filtering number_sorting palindrome_generation palindrome_partitioning "
    "pool_matrix ransom_note rotate_matrix rotten_oranges sentence_reordering spell_backward spiral_matrix "
    "string_insertion string_manipulation string_splitting string_synthesis word_ladder word_sequence_reversal "
    "word_sorting",
    "arithmetic": "basic_arithmetic bitwise_arithmetic calendar_arithmetic chain_sum count_bits decimal_arithmetic "
    "decimal_chain_sum dice fraction_simplification gcd gsm_symbolic lcm leg_counting number_format power_function "
    "prime_factorization products time_intervals",
    "code": "bf codeio",
    "cognition": "arc_1d arc_agi color_cube_rotation figlet_font modulo_grid needle_haystack number_sequence rearc "
    "rectangle_count rubiks_cube",
    "games": "boxnet countdown emoji_mystery futoshiki kakurasu knight_swap mahjong_puzzle maze mini_sudoku n_queens "
    "puzzle24 rush_hour sokoban sudoku survo tower_of_hanoi tsumego",
    "geometry and graphs": "advanced_geometry course_schedule family_relationships largest_island path_star "
    "quantum_lock shortest_path simple_geometry",
    "logic and probability": "acre aiw circuit_logic coin_flip knights_knaves list_functions propositional_logic "
    "self_reference syllogism zebra_puzzles",
    "several at once": "composite",
}
NAMES = sorted(name for names in TASKS.values() for name in names.split())


def suggest_task(name: str) -> str:
    """Empty for a task's name; else what to do about one that is none, in words."""
    if name in NAMES:
        return ""
    near = get_close_matches(name, NAMES, n=3)
    return f"reasoning-gym has no task {name!r}. " + (f"Did you mean {', '.join(near)}?" if near else "See its list.")
