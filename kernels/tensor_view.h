#pragma once

#include <cstddef>
#include <type_traits>

namespace baton {

// A pointer with up to three extents, outermost first: how operations see tensors in a backend's
// memory.
//
// Row-major. Rows (the outermost index) may be further apart than their own size, so that the query
// part of a fused query-key-value row can be viewed in place; what is inside a row is contiguous.
//
// Does not own: whoever makes a view keeps the memory alive for as long as the view is used. Only a
// backend whose memory the host can read may dereference; everybody else passes views along.
template <typename T>
class TensorView {
 public:
  static constexpr int kMaxRank = 3;

  constexpr TensorView() = default;

  TensorView(T* data, int extent) : data_(data), rank_(1), extents_{extent, 1, 1}, row_stride_(1) {}

  TensorView(T* data, int rows, int columns)
      : data_(data), rank_(2), extents_{rows, columns, 1}, row_stride_(columns) {}

  TensorView(T* data, int rows, int middle, int inner)
      : data_(data),
        rank_(3),
        extents_{rows, middle, inner},
        row_stride_(static_cast<std::ptrdiff_t>(middle) * inner) {}

  // TensorView<float> converts to TensorView<const float>, as a pointer does.
  template <typename U, typename = std::enable_if_t<std::is_same_v<const U, T>>>
  TensorView(const TensorView<U>& other)  // NOLINT(google-explicit-constructor)
      : data_(other.data()),
        rank_(other.rank()),
        extents_{other.extent(0), other.extent(1), other.extent(2)},
        row_stride_(other.row_stride()) {}

  // The same view with rows `elements` apart.
  TensorView WithRowStride(std::ptrdiff_t elements) const {
    TensorView view = *this;
    view.row_stride_ = elements;
    return view;
  }

  // Rows [first, first + count).
  TensorView Rows(int first, int count) const {
    TensorView view = *this;
    view.data_ = Row(first);
    view.extents_[0] = count;
    return view;
  }

  T* data() const { return data_; }
  int rank() const { return rank_; }
  int extent(int axis) const { return extents_[axis]; }  // 1 beyond the rank
  int rows() const { return extents_[0]; }
  std::ptrdiff_t row_stride() const { return row_stride_; }  // in elements

  // Elements of one row.
  std::ptrdiff_t row_size() const { return static_cast<std::ptrdiff_t>(extents_[1]) * extents_[2]; }

  T* Row(int i) const { return data_ + i * row_stride_; }
  T& operator()(int i) const { return Row(i)[0]; }
  T& operator()(int i, int j) const { return Row(i)[j]; }
  T& operator()(int i, int j, int k) const {
    return Row(i)[static_cast<std::ptrdiff_t>(j) * extents_[2] + k];
  }

 private:
  T* data_ = nullptr;
  int rank_ = 0;
  int extents_[kMaxRank] = {0, 1, 1};
  std::ptrdiff_t row_stride_ = 0;
};

}  // namespace baton
