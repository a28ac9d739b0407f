/* The elementwise parts of a transformer block, each in one pass over memory, for fp32 and bfloat16.
 *
 * Sums and functions are in fp32; where PyTorch's eager operators round to the tensor's type on the way, so does this.
 * Compiled and called by engine/native/fused.py, which says what each function computes. This file includes itself once
 * for each number format. */

#ifndef T

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline float load_bf16(uint16_t value) { return float_of((uint32_t)value << 16); }

/* To the nearest, ties to even; what is not a number stays none. */
static inline uint16_t store_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

/* Bounded: where exp gives infinity, 1 / (1 + exp) may come out as NaN by the CPU's approximate reciprocal. */
static inline float sigmoid_of(float value) { return 1.0f / (1.0f + expf(value > -80.0f ? -value : 80.0f)); }

#define LOAD_bf16(x) load_bf16(x)
#define STORE_bf16(x) store_bf16(x)
#define LOAD_fp32(x) (x)
#define STORE_fp32(x) (x)
#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)
#define LOAD(x) JOIN(LOAD, FORMAT)(x)
#define STORE(x) JOIN(STORE, FORMAT)(x)
#define ROUND(x) LOAD(STORE(x))
#define NAME(x) JOIN(x, FORMAT)

#define T uint16_t
#define FORMAT bf16
#include "fused.c"
#undef T
#undef FORMAT
#define T float
#define FORMAT fp32
#include "fused.c"

#else

void NAME(rms_norm)(T *out, float *scales, const T *x, const T *weight, int64_t rows, int64_t width, float epsilon) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const T *from = x + row * width;
        T *to = out + row * width;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) sum += LOAD(from[i]) * LOAD(from[i]);
        float scale = 1.0f / sqrtf(sum / (float)width + epsilon);
        scales[row] = scale;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) to[i] = STORE(LOAD(weight[i]) * ROUND(LOAD(from[i]) * scale));
    }
}

void NAME(rms_norm_backward)(T *grad_x, const T *grad, const float *scales, const T *x, const T *weight, int64_t rows,
                             int64_t width) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const T *from = x + row * width, *outer = grad + row * width;
        T *to = grad_x + row * width;
        float scale = scales[row], sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) sum += ROUND(LOAD(outer[i]) * LOAD(weight[i])) * LOAD(from[i]);
        float along = sum * scale * scale * scale / (float)width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++)
            to[i] = STORE(ROUND(LOAD(outer[i]) * LOAD(weight[i])) * scale - LOAD(from[i]) * along);
    }
}

void NAME(swiglu)(T *out, const T *gate, const T *up, int64_t count) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < count; i++) {
        float value = LOAD(gate[i]);
        out[i] = STORE(ROUND(value * sigmoid_of(value)) * LOAD(up[i]));
    }
}

void NAME(swiglu_backward)(T *grad_gate, T *grad_up, const T *grad, const T *gate, const T *up, int64_t count) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < count; i++) {
        float value = LOAD(gate[i]), outer = LOAD(grad[i]);
        float sigmoid = sigmoid_of(value);
        grad_up[i] = STORE(outer * ROUND(value * sigmoid));
        grad_gate[i] = STORE(ROUND(outer * LOAD(up[i])) * sigmoid * (1.0f + value * (1.0f - sigmoid)));
    }
}

/* sign 1: the rotation; -1: its inverse, which is its backward pass. x and out: [heads, rows, size] by strides. */
void NAME(rotate)(T *out, const T *x, const T *cosines, const T *sines, int64_t heads, int64_t rows, int64_t size,
                  int64_t out_head, int64_t out_row, int64_t x_head, int64_t x_row, float sign) {
    int64_t half = size / 2;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const T *cosine = cosines + row * size, *sine = sines + row * size;
        for (int64_t head = 0; head < heads; head++) {
            const T *from = x + head * x_head + row * x_row;
            T *to = out + head * out_head + row * out_row;
#pragma omp simd
            for (int64_t i = 0; i < half; i++) {
                float a = LOAD(from[i]), b = LOAD(from[i + half]), c = LOAD(cosine[i]), s = sign * LOAD(sine[i]);
                to[i] = STORE(ROUND(a * c) - ROUND(b * s));
                to[i + half] = STORE(ROUND(b * c) + ROUND(a * s));
            }
        }
    }
}

/* In place, scores [heads, rows, columns] -> weights; mask [rows, columns] of 0 and -inf. */
void NAME(masked_softmax)(T *scores, const T *mask, int64_t heads, int64_t rows, int64_t columns, float scaling) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t head = 0; head < heads; head++)
        for (int64_t row = 0; row < rows; row++) {
            T *line = scores + (head * rows + row) * columns;
            const T *seen = mask + row * columns;
            float most = -3.0e38f, sum = 0;
#pragma omp simd reduction(max : most)
            for (int64_t i = 0; i < columns; i++) {
                float value = LOAD(line[i]) * scaling + (LOAD(seen[i]) < 0 ? -3.0e38f : 0.0f);
                most = value > most ? value : most;
            }
            float values[columns];
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < columns; i++) {
                float value = LOAD(seen[i]) < 0 ? 0.0f : expf(LOAD(line[i]) * scaling - most);
                values[i] = value;
                sum += value;
            }
            float share = 1.0f / sum;
#pragma omp simd
            for (int64_t i = 0; i < columns; i++) line[i] = STORE(values[i] * share);
        }
}

void NAME(softmax_backward)(T *grad_scores, const T *grad, const T *weights, int64_t rows, int64_t columns,
                            float scaling) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const T *outer = grad + row * columns, *weight = weights + row * columns;
        T *to = grad_scores + row * columns;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < columns; i++) sum += LOAD(outer[i]) * LOAD(weight[i]);
#pragma omp simd
        for (int64_t i = 0; i < columns; i++) to[i] = STORE(LOAD(weight[i]) * (LOAD(outer[i]) - sum) * scaling);
    }
}

/* Of the distribution softmax(logits * inverse) of each row: log of the sum, the target's log-probability, entropy. */
void NAME(distribution)(float *log_sums, float *logprobs, float *entropies, const T *logits, const int64_t *targets,
                        int64_t rows, int64_t width, float inverse) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const T *line = logits + row * width;
        float most = -3.0e38f, sum = 0, weighted = 0;
#pragma omp simd reduction(max : most)
        for (int64_t i = 0; i < width; i++) {
            float value = LOAD(line[i]) * inverse;
            most = value > most ? value : most;
        }
#pragma omp simd reduction(+ : sum, weighted)
        for (int64_t i = 0; i < width; i++) {
            float value = LOAD(line[i]) * inverse - most, share = expf(value);
            sum += share;
            weighted += share * value;
        }
        log_sums[row] = most + logf(sum);
        logprobs[row] = LOAD(line[targets[row]]) * inverse - log_sums[row];
        entropies[row] = logf(sum) - weighted / sum;
    }
}

/* In place, logits -> the gradient of slopes * logprobs + bonuses * entropies with respect to logits * inverse. */
void NAME(distribution_gradient)(T *logits, const float *log_sums, const float *entropies, const int64_t *targets,
                                 const float *slopes, const float *bonuses, int64_t rows, int64_t width,
                                 float inverse) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        T *line = logits + row * width;
        float log_sum = log_sums[row], entropy = entropies[row], slope = slopes[row], bonus = bonuses[row];
        float value = LOAD(line[targets[row]]) * inverse - log_sum;
        float target = slope - expf(value) * (slope + bonus * (value + entropy));
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            float logprob = LOAD(line[i]) * inverse - log_sum;
            line[i] = STORE(-expf(logprob) * (slope + bonus * (logprob + entropy)));
        }
        line[targets[row]] = STORE(target);
    }
}

#endif
