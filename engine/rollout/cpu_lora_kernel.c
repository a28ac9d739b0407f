/* LoRA for the rows of many adapters at once, on CPUs with AVX-512 BF16.
 *
 * y[row, slice] += B[slot, slice] (A[slot, slice] x[row]) in bfloat16 with fp32 sums; A x is rounded to bfloat16 between
 * the two, as the trainer does it. A block's rows share a slot, and meet no other weights than that slot's.
 * Compiled and called by engine/rollout/cpu_lora_kernel.py. */

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>

#ifndef __AVX512BF16__
#error "this CPU has no AVX-512 BF16"
#endif

enum { ROWS = 16, PAIRS = 256 }; /* rows of a block; half of the highest rank */

typedef uint16_t bf16;

static inline __m512bh load(const bf16 *from) { return (__m512bh)_mm512_loadu_si512(from); }

static inline __m512bh load_first(const bf16 *from, int64_t count) {
    return (__m512bh)_mm512_maskz_loadu_epi16((__mmask32)((1u << count) - 1), from);
}

/* Lane i: the sum of the lanes of v[i]. */
static inline __m512 sums(const __m512 v[16]) {
    __m512 pairs[8], fours[4], eights[2];
    for (int i = 0; i < 8; i++)
        pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        __m512d even = _mm512_castps_pd(pairs[2 * i]), odd = _mm512_castps_pd(pairs[2 * i + 1]);
        fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(even, odd)),
                                 _mm512_castpd_ps(_mm512_unpackhi_pd(even, odd)));
    }
    for (int i = 0; i < 2; i++)
        eights[i] = _mm512_add_ps(_mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0x88),
                                  _mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(eights[0], eights[1], 0x88),
                         _mm512_shuffle_f32x4(eights[0], eights[1], 0xdd));
}

/* hidden[row][r / 2]: the pairs A[r] . x[row], A[r + 1] . x[row]. a: [rank, width], rank even. Four rows by four ranks
 * at a time; past the end the last one is repeated, and not stored. */
static void shrink(uint32_t (*hidden)[PAIRS], const bf16 *a, const bf16 *x, int64_t x_stride, const int64_t *index,
                   int64_t rows, int64_t width, int64_t rank) {
    int64_t whole = width & ~31, rest = width & 31;
    for (int64_t r = 0; r < rank; r += 4) {
        const bf16 *of[4];
        for (int j = 0; j < 4; j++) of[j] = a + (r + j < rank ? r + j : rank - 1) * width;
        for (int64_t row = 0; row < rows; row += 4) {
            const bf16 *from[4];
            __m512 sum[16];
            for (int k = 0; k < 4; k++) from[k] = x + index[row + k < rows ? row + k : rows - 1] * x_stride;
            for (int i = 0; i < 16; i++) sum[i] = _mm512_setzero_ps();
            for (int64_t d = 0; d < whole; d += 32) {
                __m512bh weight[4];
                for (int j = 0; j < 4; j++) weight[j] = load(of[j] + d);
                for (int k = 0; k < 4; k++) {
                    __m512bh input = load(from[k] + d);
                    for (int j = 0; j < 4; j++) sum[4 * k + j] = _mm512_dpbf16_ps(sum[4 * k + j], weight[j], input);
                }
            }
            if (rest) {
                __m512bh weight[4];
                for (int j = 0; j < 4; j++) weight[j] = load_first(of[j] + whole, rest);
                for (int k = 0; k < 4; k++) {
                    __m512bh input = load_first(from[k] + whole, rest);
                    for (int j = 0; j < 4; j++) sum[4 * k + j] = _mm512_dpbf16_ps(sum[4 * k + j], weight[j], input);
                }
            }
            uint32_t found[8];
            _mm256_storeu_si256((__m256i *)found, (__m256i)_mm512_cvtneps_pbh(sums(sum)));
            for (int k = 0; k < 4 && row + k < rows; k++)
                for (int j = 0; j < 2 && r + 2 * j < rank; j++) hidden[row + k][r / 2 + j] = found[2 * k + j];
        }
    }
}

/* weights[p]: the p-th pair of each of the 16 rows of b, which has rows of so many pairs. */
static inline void transpose(__m512bh *weights, const bf16 *b, int64_t pairs) {
    const uint32_t *from = (const uint32_t *)b;
    int64_t p = 0;
    for (; p + 4 <= pairs; p += 4) {
        __m512i z[4];
        for (int i = 0; i < 4; i++) {
            z[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(from + i * pairs + p)));
            z[i] = _mm512_inserti32x4(z[i], _mm_loadu_si128((const __m128i *)(from + (i + 4) * pairs + p)), 1);
            z[i] = _mm512_inserti32x4(z[i], _mm_loadu_si128((const __m128i *)(from + (i + 8) * pairs + p)), 2);
            z[i] = _mm512_inserti32x4(z[i], _mm_loadu_si128((const __m128i *)(from + (i + 12) * pairs + p)), 3);
        }
        __m512i low = _mm512_unpacklo_epi32(z[0], z[1]), high = _mm512_unpackhi_epi32(z[0], z[1]);
        __m512i low2 = _mm512_unpacklo_epi32(z[2], z[3]), high2 = _mm512_unpackhi_epi32(z[2], z[3]);
        weights[p] = (__m512bh)_mm512_unpacklo_epi64(low, low2);
        weights[p + 1] = (__m512bh)_mm512_unpackhi_epi64(low, low2);
        weights[p + 2] = (__m512bh)_mm512_unpacklo_epi64(high, high2);
        weights[p + 3] = (__m512bh)_mm512_unpackhi_epi64(high, high2);
    }
    __m512i lanes = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                       _mm512_set1_epi32((int)pairs));
    for (; p < pairs; p++) weights[p] = (__m512bh)_mm512_i32gather_epi32(lanes, (const int *)from + p, 4);
}

static inline __m512 widen(__m256i low) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16)); }

/* y[row] += B hidden[row] for 16 * count of its columns, with the weights of these. */
static inline void add_columns(bf16 *y, int64_t y_stride, const int64_t *index, __m512bh (*weights)[PAIRS], int count,
                               uint32_t (*hidden)[PAIRS], int64_t rows, int64_t pairs) {
    for (int64_t row = 0; row < rows; row++) {
        bf16 *target = y + index[row] * y_stride;
        __m512 even[2], odd[2];
        for (int c = 0; c < count; c++) {
            even[c] = widen(_mm256_loadu_si256((const __m256i *)(target + 16 * c)));
            odd[c] = _mm512_setzero_ps();
        }
        int64_t p = 0;
        for (; p + 2 <= pairs; p += 2) {
            __m512bh first = (__m512bh)_mm512_set1_epi32((int)hidden[row][p]);
            __m512bh second = (__m512bh)_mm512_set1_epi32((int)hidden[row][p + 1]);
            for (int c = 0; c < count; c++) {
                even[c] = _mm512_dpbf16_ps(even[c], weights[c][p], first);
                odd[c] = _mm512_dpbf16_ps(odd[c], weights[c][p + 1], second);
            }
        }
        if (p < pairs)
            for (int c = 0; c < count; c++)
                even[c] = _mm512_dpbf16_ps(even[c], weights[c][p], (__m512bh)_mm512_set1_epi32((int)hidden[row][p]));
        for (int c = 0; c < count; c++)
            _mm256_storeu_si256((__m256i *)(target + 16 * c),
                                (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(even[c], odd[c])));
    }
}

/* y[row] += B hidden[row]. b: [width, rank], rank even, width a multiple of 16. Two of the blocks of columns at a time
 * are a whole line of the cache. */
static void expand(bf16 *y, int64_t y_stride, const int64_t *index, const bf16 *b, uint32_t (*hidden)[PAIRS],
                   int64_t rows, int64_t width, int64_t rank) {
    int64_t pairs = rank / 2, o = 0;
    __m512bh weights[2][PAIRS];
    for (; o + 32 <= width; o += 32) {
        transpose(weights[0], b + o * rank, pairs);
        transpose(weights[1], b + (o + 16) * rank, pairs);
        add_columns(y + o, y_stride, index, weights, 2, hidden, rows, pairs);
    }
    if (o < width) {
        transpose(weights[0], b + o * rank, pairs);
        add_columns(y + o, y_stride, index, weights, 1, hidden, rows, pairs);
    }
}

/* index: rows of x and y, block after block. blocks: {slot, first place in index, rows <= ROWS} each. Per slice a:
 * [slots, rank, in], b: [slots, width, rank]. */
void marlaas_add_lora(bf16 *y, int64_t y_stride, const bf16 *x, int64_t x_stride, const int64_t *index,
                      const int64_t *blocks, int64_t count, int64_t in, int64_t rank, int64_t slices,
                      const bf16 *const *a, const bf16 *const *b, const int64_t *widths) {
#pragma omp parallel for schedule(dynamic, 1) if (count > 1)
    for (int64_t block = 0; block < count; block++) {
        int64_t slot = blocks[3 * block], rows = blocks[3 * block + 2];
        const int64_t *mine = index + blocks[3 * block + 1];
        uint32_t hidden[ROWS][PAIRS];
        bf16 *target = y;
        for (int64_t slice = 0; slice < slices; slice++) {
            shrink(hidden, a[slice] + slot * rank * in, x, x_stride, mine, rows, in, rank);
            expand(target, y_stride, mine, b[slice] + slot * widths[slice] * rank, hidden, rows, widths[slice], rank);
            target += widths[slice];
        }
    }
}
