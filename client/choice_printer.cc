#include "client/choice_printer.h"

#include <ostream>

#include "client/text_output.h"

namespace baton {

ChoicePrinter::ChoicePrinter(std::ostream& out, std::size_t choices, bool dim)
    : out_(out), dim_(dim), choices_(choices) {}

void ChoicePrinter::Add(const v1::Choice& increment) {
  if (increment.index() >= choices_.size()) {
    return;
  }
  v1::Choice& choice = choices_[increment.index()];
  choice.mutable_text()->append(increment.text());
  choice.mutable_logprobs()->MergeFrom(increment.logprobs());
  choice.set_finish_reason(increment.finish_reason());
  if (increment.index() != current_) {
    return;
  }
  if (opened_) {
    out_ << increment.text();
  } else {
    Open();
  }
  while (opened_ && choices_[current_].finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    Finish();
    out_ << DescribeLogprobs(choices_[current_]);
    if (++current_ < choices_.size()) {
      Open();
    }
  }
  out_ << std::flush;
}

void ChoicePrinter::Finish() {
  if (opened_) {
    out_ << "\n";
    opened_ = false;
  }
}

void ChoicePrinter::Open() {
  if (choices_.size() > 1) {
    out_ << DescribeChoice(current_, dim_) << "\n";
  }
  out_ << choices_[current_].text();
  opened_ = true;
}

}  // namespace baton
