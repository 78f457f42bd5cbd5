// From a plan's rows to tokens: the batch, the forward pass, and the samples of its logits.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "common/log.h"
#include "engine/engine.h"

namespace baton {

void Engine::Compute(const StepPlan& plan) {
  HitFailpoint("engine.compute").IgnoreError();
  const std::vector<LogitRow> wanted = LogitRows(plan);
  const ForwardBatch batch = MakeBatch(plan, wanted);
  const bool reports =
      std::any_of(plan.rows.begin(), plan.rows.end(), [this](const StepPlan::Rows& rows) {
        return Find(rows.id)->request.kind == SequenceKind::kPrefillOnly;
      });
  Transformer::StepHooks hooks{.is_abandoned = [this, &plan] { return IsAbandoned(plan); }};
  if (reports) {  // waiting for the device after each layer is for those who asked
    hooks.on_layer = [this, &plan](LayerIndex layer) { ReportLayer(plan, layer); };
  }
  const absl::StatusOr<TensorView<const float>> logits =
      transformer_->Forward(batch, pool_view_, hooks);
  if (logits.ok()) {
    FinishStep(plan, wanted, *logits);
    return;
  }
  if (absl::IsCancelled(logits.status())) {
    return;  // its sequences end before the next step
  }
  LogEvent(LogLevel::kError, "step.failed", {{"status", logits.status()}, {"rows", batch.rows()}});
  for (const StepPlan::Rows& rows : plan.rows) {
    End(*Find(rows.id), absl::InternalError(absl::StrCat("forward pass: ",
                                                         std::string(logits.status().message()))));
  }
}

// A step of many rows takes a large share of the second in which a cancelled request's blocks must
// be free.
bool Engine::IsAbandoned(const StepPlan& plan) {
  const TimePoint now = options_.clock->Now();
  absl::MutexLock lock(&cancelling_mutex_);
  return std::all_of(plan.rows.begin(), plan.rows.end(), [&](const StepPlan::Rows& rows) {
    const std::optional<TimePoint>& deadline = Find(rows.id)->request.deadline;
    return cancelling_.contains(rows.id) || (deadline.has_value() && now >= *deadline);
  });
}

ForwardBatch Engine::MakeBatch(const StepPlan& plan, std::span<const LogitRow> wanted) {
  ForwardBatch batch;
  for (const StepPlan::Rows& rows : plan.rows) {
    const Sequence& sequence = *Find(rows.id);
    const int end = sequence.computed + rows.count;
    const int segment = static_cast<int>(batch.segments.size());
    batch.segments.push_back({.blocks = sequence.lease.blocks(), .tokens = end});
    for (int position = sequence.computed; position < end; ++position) {
      batch.AddRow(sequence.tokens[static_cast<std::size_t>(position)], position, segment);
    }
  }
  for (const LogitRow& row : wanted) {
    batch.logit_rows.push_back(row.row);
  }
  return batch;
}

void Engine::ReportLayer(const StepPlan& plan, LayerIndex layer) {
  for (const StepPlan::Rows& rows : plan.rows) {
    const Sequence& sequence = *Find(rows.id);
    if (sequence.request.kind != SequenceKind::kPrefillOnly) {
      continue;
    }
    // A block is final once its last slot is written; the prompt's last, part-filled block once the
    // prompt is done.
    const int end = sequence.computed + rows.count;
    const int first_block = sequence.computed / kBlockTokens;
    const int end_block = end == sequence.known() ? BlocksForTokens(end) : end / kBlockTokens;
    if (end_block > first_block) {
      sequence.request.hooks->OnLayerComputed(layer, first_block, end_block - first_block);
    }
  }
}

// Called before the step's tokens count as computed.
std::vector<Engine::LogitRow> Engine::LogitRows(const StepPlan& plan) {
  std::vector<LogitRow> wanted;
  int first_row = 0;
  for (const StepPlan::Rows& rows : plan.rows) {
    Sequence& sequence = *Find(rows.id);
    for (int i = 0; i < rows.count; ++i) {
      const int position = sequence.computed + i;
      if (position + 1 == sequence.known()) {
        wanted.push_back({first_row + i, &sequence, std::nullopt});
      } else if (sequence.WantsPromptLogprob(position)) {
        wanted.push_back(
            {first_row + i, &sequence, sequence.tokens[static_cast<std::size_t>(position + 1)]});
      }
    }
    first_row += rows.count;
  }
  return wanted;
}

void Engine::FinishStep(const StepPlan& plan,
                        std::span<const LogitRow> wanted,
                        TensorView<const float> logits) {
  for (const StepPlan::Rows& rows : plan.rows) {
    Sequence& sequence = *Find(rows.id);
    const int in_prompt = std::max(
        0, std::min(sequence.computed + rows.count, sequence.prompt_tokens()) - sequence.computed);
    prefilled_tokens_ += static_cast<std::uint64_t>(in_prompt);
    step_.prefilled_tokens += in_prompt;
    sequence.computed += rows.count;
    RegisterBlocks(sequence);
  }
  std::vector<SampleRow> rows;
  for (const LogitRow& row : wanted) {
    rows.push_back({.request = &row.sequence->request,
                    .history = row.sequence->tokens,
                    .forced = row.prompt_token});
  }
  std::vector<Sample> samples = SampleRows(backend_, logits, rows);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    TakeSample(*wanted[i].sequence, wanted[i].prompt_token.has_value(), std::move(samples[i]));
  }
}

void Engine::TakeSample(Sequence& sequence, bool of_prompt, Sample sample) {
  if (sequence.ended) {
    return;  // an earlier row of it failed
  }
  if (!sample.status.ok()) {
    LogEvent(LogLevel::kError, "sample.failed",
             {{"request", sequence.request.request_id}, {"status", sample.status}});
    End(sequence, std::move(sample.status));
  } else if (of_prompt) {
    sequence.prompt_logprobs.push_back(std::move(sample.token));
  } else {
    ++decoded_tokens_;
    ++step_.sampled_tokens;
    if (sequence.output_tokens() == 0 && !sequence.request.fork_of.has_value()) {
      step_.prompt_tokens += sequence.prompt_tokens();
    }
    AppendToken(sequence, sample.token);
  }
}

}  // namespace baton
